"""Exceptions of the emulator."""


class EmulatorError(Exception):
    """Base class: something the emulator cannot or will not execute."""


class PtxError(EmulatorError):
    """One or more problems in a PTX text.

    Parameters
    ----------
    problems : list of (line, column, message)
        Everything that was found in one run, in text order; lines and columns count from 1.
    name : str
        What to call the text in the message.
    """

    def __init__(self, problems, name="ptx"):
        self.problems = sorted(problems)
        self.name = name
        super().__init__("\n".join(f"{name}:{ln}:{col}: {msg}" for ln, col, msg in self.problems))


class EmitError(Exception):
    """Raised by an instruction handler for an operand or modifier it does not know."""


class DeviceFault(EmulatorError):
    """The kernel did something that ends the launch on a GPU too (illegal address, trap, ...)."""


class TooManyHazards(EmulatorError):
    """Internal: enough hazards were recorded, the launch stops early."""


class HazardError(EmulatorError):
    """An emulated op finished with findings; ``result`` is the launch's `Result`."""

    def __init__(self, message, result):
        super().__init__(message)
        self.result = result
