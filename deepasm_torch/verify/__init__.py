"""Trust in the kernels without a GPU: `deepasm verify` and its study of planted bugs.

`problem` builds small problems and runs a kernel on them in the emulator, `variants` chooses which
kernels on which shapes, `sites` and `mutations` plant bugs in the rendered PTX, `equivalent` lists
the mutations that change nothing, `planted` runs the study.
"""
