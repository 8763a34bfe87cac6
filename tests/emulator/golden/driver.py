"""Runs a case on a GPU through the CUDA driver: ctypes on libcuda, nothing else."""

from __future__ import annotations

import ctypes as C

import numpy as np

from .case import Map

TYPES = ("uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64")
TYPES += ("bfloat16", "float32_ftz", "tfloat32", "tfloat32_ftz")
SWIZZLE = {0: 0, 32: 1, 64: 2, 128: 3}
GUARD = 4096  # bytes of 0xA5 on either side of every buffer


class CudaError(RuntimeError):
    """``sticky``: the context is lost."""

    def __init__(self, text, sticky=False):
        super().__init__(text)
        self.sticky = sticky


class LaunchAttribute(C.Structure):
    _fields_ = [("id", C.c_uint), ("pad", C.c_uint), ("value", C.c_uint * 16)]


class LaunchConfig(C.Structure):
    _fields_ = [
        ("grid", C.c_uint * 3),
        ("block", C.c_uint * 3),
        ("shared", C.c_uint),
        ("stream", C.c_void_p),
        ("attributes", C.POINTER(LaunchAttribute)),
        ("count", C.c_uint),
    ]


def _dim3(x):
    t = (x,) if isinstance(x, int) else tuple(x)
    return t + (1,) * (3 - len(t))


class Gpu:
    """Device 0's primary context."""

    def __init__(self):
        self.cu = C.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device = C.c_int()
        self.call("cuDeviceGet", C.byref(device), 0)
        self.device = device
        context = C.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", C.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *args):
        code = getattr(self.cu, name)(*args)
        if code:
            text = C.c_char_p()
            self.cu.cuGetErrorName(code, C.byref(text))
            known = text.value.decode() if text.value else "?"
            # 7xx: the context is lost (except 701, launch out of resources); also 999 and 214
            sticky = 700 <= code < 800 and code != 701 or code in (214, 999)
            raise CudaError(f"{known} ({code}) from {name}", sticky)

    def describe(self):
        """Name, compute capability and driver version."""
        name = C.create_string_buffer(128)
        self.call("cuDeviceGetName", name, 128, self.device)
        value = C.c_int()
        cc = []
        for attribute in (75, 76):
            self.call("cuDeviceGetAttribute", C.byref(value), attribute, self.device)
            cc.append(value.value)
        self.call("cuDriverGetVersion", C.byref(value))
        return {
            "device": name.value.decode(),
            "compute_capability": "{}.{}".format(*cc),
            "cuda_driver_api": value.value,
        }

    # ------------------------------------------------------------------ pieces of a launch
    def load(self, image):
        """Module from a cubin, or from PTX text with the driver's own compiler."""
        module = C.c_void_p()
        if image[:4] == b"\x7fELF":
            self.call("cuModuleLoadData", C.byref(module), C.c_char_p(image))
            return module
        log = C.create_string_buffer(4096)
        options = (C.c_int * 2)(5, 6)  # error log buffer, its size
        values = (C.c_void_p * 2)(C.addressof(log), len(log))
        try:
            self.call("cuModuleLoadDataEx", C.byref(module), C.c_char_p(image), 2, options, values)
        except CudaError as err:
            raise CudaError(f"{err}: {log.value.decode(errors='replace')}", err.sticky) from None
        return module

    def upload(self, data):
        """(allocation, address) of a copy of an array between guards."""
        raw = np.full(2 * GUARD + data.nbytes, 0xA5, np.uint8)
        raw[GUARD : GUARD + data.nbytes] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        base = C.c_uint64()
        self.call("cuMemAlloc_v2", C.byref(base), C.c_size_t(len(raw)))
        self.call("cuMemcpyHtoD_v2", base, raw.ctypes.data_as(C.c_void_p), C.c_size_t(len(raw)))
        return base, base.value + GUARD

    def download(self, base, nbytes):
        """Contents between the guards; raises when a guard was written."""
        raw = np.empty(2 * GUARD + nbytes, np.uint8)
        self.call("cuMemcpyDtoH_v2", raw.ctypes.data_as(C.c_void_p), base, C.c_size_t(len(raw)))
        if (raw[:GUARD] != 0xA5).any() or (raw[GUARD + nbytes :] != 0xA5).any():
            raise CudaError("the kernel wrote outside its buffers")
        return raw[GUARD : GUARD + nbytes].copy()

    def tensor_map(self, p, address):
        """128 bytes at an address that is a multiple of 64; the second value keeps them alive."""
        r = p.record
        store = (C.c_uint8 * 192)()
        at = -(-C.addressof(store) // 64) * 64
        rank = len(r["dims"])
        dims = (C.c_uint64 * 5)(*r["dims"])
        strides = (C.c_uint64 * 5)(*r["strides"])
        steps = (C.c_uint32 * 5)(*r.get("elem_strides", (1,) * rank))
        kind, fill = TYPES.index(r["dtype"]), int(r.get("fill") == "nan")
        common = [C.c_void_p(at), C.c_int(kind), C.c_uint32(rank),
                  C.c_void_p(address[p.of] + p.offset), dims, strides]  # fmt: skip
        last = [steps, C.c_int(0), C.c_int(SWIZZLE[r.get("swizzle", 0)]), C.c_int(0), C.c_int(fill)]
        if r.get("mode") == "im2col":
            lower, upper = (C.c_int * 3)(*r["lower"]), (C.c_int * 3)(*r["upper"])
            middle = [lower, upper, C.c_uint32(r["channels"]), C.c_uint32(r["pixels"])]
            self.call("cuTensorMapEncodeIm2col", *common, *middle, *last)
        else:
            self.call("cuTensorMapEncodeTiled", *common, (C.c_uint32 * 5)(*r["box"]), *last)
        return at, store

    # ------------------------------------------------------------------ a case
    def run(self, case, image):
        """Outputs of a case, by buffer name, as bytes."""
        module = self.load(image)
        function = C.c_void_p()
        self.call("cuModuleGetFunction", C.byref(function), module, b"k")
        held, address, keep, pointers = {}, {}, [], []
        for name, data in case.buffers.items():
            held[name], address[name] = self.upload(data)
        for p in case.params:
            if isinstance(p, Map):
                at, store = self.tensor_map(p, address)
                keep.append(store)
                pointers.append(at)
                continue
            value = C.c_uint64(address[p] if isinstance(p, str) else p & (1 << 64) - 1)
            keep.append(value)
            pointers.append(C.addressof(value))
        config = LaunchConfig()
        config.grid[:], config.block[:] = _dim3(case.grid), _dim3(case.block)
        cluster = _dim3(case.cluster)
        attribute = LaunchAttribute(id=4)
        attribute.value[0:3] = cluster
        config.attributes = C.pointer(attribute)
        config.count = int(cluster != (1, 1, 1))
        array = (C.c_void_p * max(1, len(pointers)))(*pointers)
        self.call("cuLaunchKernelEx", C.byref(config), function, array, None)
        self.call("cuCtxSynchronize")
        outputs = {}
        for name, base in held.items():
            raw = self.download(base, case.buffers[name].nbytes)
            if name in case.outputs:
                outputs[name] = raw
            self.call("cuMemFree_v2", base)
        self.call("cuModuleUnload", module)
        return outputs
