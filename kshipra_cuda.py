"""The GPU path of kshipra: the same operations, and the same bits, on an NVIDIA card.

    python kshipra.py --device cuda --model model.gguf --prompt "The capital of France is"

This is a second book beside kshipra.py, in five chapters.  It needs the driver of the card and
NVRTC, NVIDIA's compiler as a library; both are called through ctypes.  kshipra imports it only
when a GPU is asked for.

    1. The driver
    2. The compiler
    3. Memory
    4. Kernels
    5. The recording as a graph

The words are those of kshipra.py's glossary.  MIT License.
"""
import contextlib
import ctypes
import glob
import hashlib
import os
import re
import string
import sys
import tempfile
import weakref
from array import array
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import NamedTuple

import kshipra
from kshipra import (CHUNK, ERFC_POLY, EXP_MAX, EXP_MIN, EXP_POLY, F16_MAX, F32_MAX, GELU_CUBIC,
                     GELU_SLOPE, HALF_BELOW, KEPT_PROGRAMS, KV_TYPES, LN2_HI, LN2_LO,
                     LOG2_E, LONG_POSITIONS, LOWEST, MAX_EXPERTS, NOT_FINITE, Q8_0_MAX, ROOT_HALF,
                     SWIGLU_LIMIT, SWIGLU_SLOPE, TINY, Backend, Buffer, Call, Index, KshipraError,
                     Logits, PagePool, Program, Recorder, f32_bits)

# ---------------------------------------------------------------------------------------
# 1. The driver
#
# The driver's library is a C interface of some hundred functions.  The one idea: each that is
# used here is bound once, by a row of a table with the types of its arguments, and the binding
# checks the status.  So no call can forget to, and every error names the call, the driver's
# own word for what went wrong, and what to do.
#
# The library has different names on different systems, and under WSL it lies where no search
# path leads.  All places are tried in order; when none has it, all are named.
# Source: CUDA Driver API, version 12.9, its reference manual.

DRIVER_PLACES = {                       # by sys.platform; the system searches what is no path
    "linux": ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1", "libcuda.so"),
    "win32": ("nvcuda.dll",),
}
GET_NVRTC = "python -m pip install nvidia-cuda-nvrtc-cu12"


class DriverError(KshipraError):
    """The driver or the compiler refused a call."""


_P, _A, _I, _U, _N = c_void_p, c_uint64, c_int, c_uint, c_size_t     # pointer, device address ..

DRIVER_FUNCTIONS = {
    "cuInit": (_U,),
    "cuDriverGetVersion": (_P,),
    "cuDeviceGetCount": (_P,),
    "cuDeviceGet": (_P, _I),
    "cuDeviceGetName": (_P, _I, _I),
    "cuDeviceGetAttribute": (_P, _I, _I),
    "cuDevicePrimaryCtxRetain": (_P, _I),
    "cuDevicePrimaryCtxRelease_v2": (_I,),
    "cuCtxSetCurrent": (_P,),
    "cuMemAlloc_v2": (_P, _N),
    "cuMemFree_v2": (_A,),
    "cuMemHostAlloc": (_P, _N, _U),
    "cuMemFreeHost": (_P,),
    "cuMemsetD8_v2": (_A, ctypes.c_ubyte, _N),
    "cuMemcpyHtoD_v2": (_A, _P, _N),
    "cuMemcpyDtoH_v2": (_P, _A, _N),
    "cuMemcpyHtoDAsync_v2": (_A, _P, _N, _P),
    "cuMemcpyDtoHAsync_v2": (_P, _A, _N, _P),
    "cuModuleLoadData": (_P, _P),
    "cuModuleUnload": (_P,),
    "cuModuleGetFunction": (_P, _P, c_char_p),
    "cuLaunchKernel": (_P, _U, _U, _U, _U, _U, _U, _U, _P, _P, _P),
    "cuStreamCreate": (_P, _U),
    "cuStreamDestroy_v2": (_P,),
    "cuStreamSynchronize": (_P,),
    "cuStreamBeginCapture_v2": (_P, _I),
    "cuStreamEndCapture": (_P, _P),
    "cuGraphInstantiateWithFlags": (_P, _P, c_uint64),
    "cuGraphLaunch": (_P, _P),
    "cuGraphDestroy": (_P,),
    "cuGraphExecDestroy": (_P,),
}

COMPUTE_MAJOR, COMPUTE_MINOR = 75, 76           # CUdevice_attribute
NON_BLOCKING = 1                                # CU_STREAM_NON_BLOCKING
CAPTURE_THREAD = 1                              # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL

ADVICE = {                              # the driver's word -> what to do
    "CUDA_ERROR_OUT_OF_MEMORY": "use a smaller ctx_size, or keep fewer layers on the GPU "
                                "(gpu_layers)",
    "CUDA_ERROR_NO_DEVICE": "there is no NVIDIA GPU that this process may use; see "
                            "CUDA_VISIBLE_DEVICES, or use another device",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION": "NVRTC is newer than the driver; update the driver, or "
                                          f"get an older NVRTC ({GET_NVRTC})",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "NVRTC knows no code for this GPU; get another version of it "
                                    f"({GET_NVRTC})",
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "the driver was updated; restart the system",
    "CUDA_ERROR_INSUFFICIENT_DRIVER": "update the driver of the GPU",
}
SEE_DRIVER = "see whether nvidia-smi works, and use device=\"auto\" until it does"


def open_library(places):
    """Return (the first library of these places that loads, None), or (None, what was tried)."""
    tried = []
    for place in places:
        if os.path.isabs(place) and not os.path.exists(place):
            tried.append(place)
            continue
        try:
            return (ctypes.WinDLL if sys.platform == "win32" else ctypes.CDLL)(place), None
        except OSError as e:
            there = os.path.isabs(place)        # so something is wrong with it: say what
            tried.append(f"{place} ({e})" if there else place)
    return None, ", ".join(tried)


def bind(library, functions, words_for):
    """Return an object with `functions` as methods that raise DriverError on any status but 0.

    functions: name -> types of arguments   words_for(status): what the library says about it
    """
    bound = type("Functions", (), {})()
    for name, argtypes in functions.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise KshipraError(f"{library._name} has no function {name}, so it is too old; update "
                               "the driver of the GPU") from None

        def check(status, _function, _arguments, name=name):
            if status:
                raise DriverError(f"{name}: {words_for(status)}")
            return status
        function.argtypes, function.restype, function.errcheck = argtypes, c_int, check
        setattr(bound, name, function)
    return bound


def open_driver():
    """Return the driver's functions.  Raises KshipraError where there is no driver."""
    places = DRIVER_PLACES.get(sys.platform, ())
    library, tried = open_library(places)
    if library is None:
        raise KshipraError(f"no driver of an NVIDIA GPU was found; looked for {tried or 'none'} "
                           "on this system. Install the driver, then NVRTC needs no CUDA toolkit: "
                           f"{GET_NVRTC}")

    def words_for(status):
        name, text = c_char_p(), c_char_p()
        library.cuGetErrorName(c_int(status), byref(name))
        library.cuGetErrorString(c_int(status), byref(text))
        word = (name.value or b"CUDA_ERROR").decode()
        return (f"{word} ({status}, {(text.value or b'no text').decode()}); "
                f"{ADVICE.get(word, SEE_DRIVER)}")

    return bind(library, DRIVER_FUNCTIONS, words_for)


# ---------------------------------------------------------------------------------------
# 2. The compiler
#
# NVRTC turns CUDA C into machine code for one architecture (a cubin) or into PTX, a portable
# assembly that the driver translates.  A cubin is taken where NVRTC knows the card: it also
# runs on a driver that is older than NVRTC, which refuses PTX of the newer version.  Where the
# card is newer than NVRTC, PTX of the highest architecture it knows will do.
#
#   card 8.6, NVRTC knows 5.0 .. 9.0   ->  cubin of sm_86
#   card 12.0, NVRTC knows 5.0 .. 9.0  ->  PTX of compute_90
#
# NVRTC is two libraries, and one version of the first must not meet another of the second: both
# are loaded from one folder.  What was compiled is kept in a folder of the user's, under a name
# made of all that matters; deleting it costs only the time to compile again.
# Source: NVRTC, its user guide, version 12.9.

NVRTC_FUNCTIONS = {
    "nvrtcVersion": (_P, _P),
    "nvrtcGetNumSupportedArchs": (_P,),
    "nvrtcGetSupportedArchs": (_P,),
    "nvrtcCreateProgram": (_P, c_char_p, c_char_p, _I, _P, _P),
    "nvrtcDestroyProgram": (_P,),
    "nvrtcCompileProgram": (_P, _I, _P),
    "nvrtcGetProgramLogSize": (_P, _P),
    "nvrtcGetProgramLog": (_P, _P),
    "nvrtcGetPTXSize": (_P, _P),
    "nvrtcGetPTX": (_P, _P),
    "nvrtcGetCUBINSize": (_P, _P),
    "nvrtcGetCUBIN": (_P, _P),
}
OPTIONS = ("--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true", "--std=c++14")
_MAIN = re.compile(r"libnvrtc(-(?!builtins)\w+)?\.so(\.[\d.]+)?|nvrtc64_\d+_0\.dll")
_BUILTINS = re.compile(r"(?:lib)?nvrtc-builtins(?:-\w+)?(?:\.so\.|64_)([\d.]+?)(?:\.dll)?")


def nvrtc_folders(environ, paths, root="/"):
    """Return the folders where NVRTC may lie, the system's toolkits first, then pip's, torch's.

    environ: CUDA_PATH and CUDA_HOME name toolkits   paths: as sys.path   root: of the file system
    """
    toolkits = [environ[name] for name in ("CUDA_PATH", "CUDA_HOME") if environ.get(name)]
    toolkits += [os.path.join(root, "usr/local/cuda")]
    toolkits += sorted(glob.glob(os.path.join(root, "usr/local/cuda-*")), reverse=True)
    toolkits += [os.path.join(root, "opt/cuda")]
    folders = [os.path.join(toolkit, part) for toolkit in toolkits
               for part in ("lib64", "bin", "bin/x64", "lib")]
    for path in paths:
        wheels = glob.glob(os.path.join(glob.escape(path or "."), "nvidia", "*", "lib"))
        wheels += glob.glob(os.path.join(glob.escape(path or "."), "nvidia", "*", "bin"))
        folders += sorted(wheels) + [os.path.join(path or ".", "torch", "lib")]
    folders += [os.path.join(root, "usr/lib/x86_64-linux-gnu"),
                os.path.join(root, "usr/lib/aarch64-linux-gnu"), os.path.join(root, "usr/lib64")]
    return list(dict.fromkeys(folders))


def nvrtc_pairs(folder):
    """Return the pairs (builtins, main) of NVRTC's two libraries in one folder, the newest first.

    Their versions agree as far as their names tell.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    builtins = {}
    for name in names:
        found = _BUILTINS.fullmatch(name)
        if found:                       # 12.9, or 129 on Windows
            digits = found[1] if "." in found[1] else f"{found[1][:-1]}.{found[1][-1]}"
            builtins[digits.split(".")[0]] = os.path.join(folder, name)
    pairs = {}
    for name in names:
        if _MAIN.fullmatch(name):
            major = re.search(r"\.so\.(\d+)|nvrtc64_(\d+?)\d?_", name)
            major = (major[1] or major[2])[:2] if major else max(builtins, default=None)
            if major in builtins:
                pairs.setdefault(major, (builtins[major], os.path.join(folder, name)))
    return [pairs[major] for major in sorted(pairs, key=int, reverse=True)]


class Compiler:
    """NVRTC for one card.

    target: the option that names the architecture   binary: whether it makes cubins, or PTX
    version: (major, minor) of NVRTC   cache: folder of what was compiled
    """

    def __init__(self, library, path, compute, driver_version, cache):
        self.path, self.driver_version, self.cache = path, driver_version, cache

        library.nvrtcGetErrorString.restype = c_char_p
        self.nvrtc = bind(library, NVRTC_FUNCTIONS, lambda status: (
            f"{library.nvrtcGetErrorString(c_int(status)).decode()} ({status}), says {path}"))
        major, minor, n = c_int(), c_int(), c_int()
        self.nvrtc.nvrtcVersion(byref(major), byref(minor))
        self.version = major.value, minor.value
        self.nvrtc.nvrtcGetNumSupportedArchs(byref(n))
        archs = (c_int * n.value)()
        self.nvrtc.nvrtcGetSupportedArchs(archs)
        self.target, self.binary = choose_target(archs, compute)
        if self.target is not None and not self.binary and self.version > driver_version:
            self.target = None          # the driver would refuse the PTX

    def compile(self, source):
        """Return the code of a source, from the cache if it is there.  Raises DriverError."""
        key = hashlib.sha256(repr((source, self.target, self.binary, OPTIONS, self.version,
                                   self.driver_version)).encode()).hexdigest()
        path = os.path.join(self.cache, f"{key}.{'cubin' if self.binary else 'ptx'}")
        code = read_kept(path)
        if code is None:
            code = self._compile(source)
            keep(path, code)
        return code

    def _compile(self, source):
        nvrtc, program, size = self.nvrtc, c_void_p(), c_size_t()
        options = [option.encode() for option in (self.target, *OPTIONS)]
        nvrtc.nvrtcCreateProgram(byref(program), source.encode(), b"kshipra.cu", 0, None, None)
        try:
            try:
                nvrtc.nvrtcCompileProgram(program, len(options), (c_char_p * len(options))(
                    *options))
            except DriverError as error:
                nvrtc.nvrtcGetProgramLogSize(program, byref(size))
                log = ctypes.create_string_buffer(size.value)
                nvrtc.nvrtcGetProgramLog(program, log)
                lines = log.value.decode("utf-8", "replace").splitlines()
                first = next((line for line in lines if "error" in line), "no log")
                raise DriverError(f"{error}: {first}") from None
            kind = "CUBIN" if self.binary else "PTX"
            getattr(nvrtc, f"nvrtcGet{kind}Size")(program, byref(size))
            code = ctypes.create_string_buffer(size.value)
            getattr(nvrtc, f"nvrtcGet{kind}")(program, code)
            return code.raw
        finally:
            nvrtc.nvrtcDestroyProgram(byref(program))


def choose_target(archs, compute):
    """Return (option, whether to make a cubin) for a card of this compute capability.

    archs: those that NVRTC knows, as 10 * major + minor   compute: of the card, likewise
    A cubin runs on cards of the same major number and no lower minor one; PTX on all newer
    cards.  The option is None if NVRTC knows nothing that the card could run.
    """
    known = [arch for arch in archs if arch <= compute]
    if not known:
        return None, False
    best = max(known)
    binary = best // 10 == compute // 10
    return f"--gpu-architecture={'sm' if binary else 'compute'}_{best}", binary


def read_kept(path):
    """Return what `keep` wrote to a file, or None if it is not there, or not whole."""
    try:
        with open(path, "rb") as f:
            data = f.read()
    except OSError:
        return None
    return data[32:] if hashlib.sha256(data[32:]).digest() == data[:32] else None


def keep(path, code):
    """Write code behind its SHA-256 to a file, which appears whole or not; where none may be
    written, go without."""
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle, part = tempfile.mkstemp(dir=os.path.dirname(path))
        try:
            with os.fdopen(handle, "wb") as f:
                f.write(hashlib.sha256(code).digest() + code)
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.remove(part)
            raise


def cache_folder(environ):
    """Return the folder where the user's programs keep what they can make again."""
    base = environ.get("XDG_CACHE_HOME") or environ.get("LOCALAPPDATA") or os.path.join(
        os.path.expanduser("~"), ".cache")
    return os.path.join(base, "kshipra")


def open_compiler(compute, driver_version):
    """Return a Compiler for a card.  Raises KshipraError, naming all places, where there is none.

    compute: 10 * major + minor   driver_version: (major, minor) of CUDA
    """
    tried, unfit = [], []
    for folder in nvrtc_folders(os.environ, sys.path):
        for builtins, main in nvrtc_pairs(folder):
            try:
                if sys.platform != "win32":     # by its name NVRTC then finds this one
                    ctypes.CDLL(builtins, ctypes.RTLD_GLOBAL)
                library = ctypes.CDLL(main)
            except OSError as e:
                unfit.append(f"{main} does not load ({e})")
                continue
            compiler = Compiler(library, main, compute, driver_version, cache_folder(os.environ))
            if compiler.target is not None:
                return compiler
            unfit.append(f"{main}, version {compiler.version[0]}.{compiler.version[1]}, has no "
                         f"code for compute capability {compute // 10}.{compute % 10} under a "
                         f"driver for CUDA {driver_version[0]}.{driver_version[1]}")
        tried.append(folder)
    raise KshipraError("no NVRTC that fits was found: " + "; ".join(
        unfit + ["looked in " + ", ".join(tried)]) + f". Without a CUDA toolkit: {GET_NVRTC}")


# ---------------------------------------------------------------------------------------
# 3. Memory
#
# The card has memory of its own.  What a forward pass touches lies there and is allocated once:
# weights when a program first names them, pages of the cache with the pool, activations in one
# arena, the inputs of a step in a buffer that one copy fills.  `Device` knows all that it gave,
# so that closing it, or its failing, leaves nothing behind.

class Device:
    """One card: its context, a stream, and what was allocated.

    name, compute: of the card   driver: functions   compiler: Compiler
    held: device addresses -> bytes   pinned: host addresses that the card copies to and from
    modules, graphs: handles of what was loaded, and of what can be launched
    failed: why it computes no more, or None
    """

    def __init__(self):
        self.held, self.pinned, self.modules, self.graphs = {}, set(), [], set()
        self.failed = None
        self.context = self.stream = None
        self.driver = driver = open_driver()
        driver.cuInit(0)
        self._device, value = c_int(), c_int()
        driver.cuDeviceGetCount(byref(value))
        if not value.value:
            raise DriverError("cuDeviceGetCount: no device; " + ADVICE["CUDA_ERROR_NO_DEVICE"])
        driver.cuDeviceGet(byref(self._device), 0)
        name = ctypes.create_string_buffer(256)
        driver.cuDeviceGetName(name, 256, self._device)
        self.name = name.value.decode("utf-8", "replace")
        major, minor = (self._attribute(which) for which in (COMPUTE_MAJOR, COMPUTE_MINOR))
        self.compute = 10 * major + minor
        driver.cuDriverGetVersion(byref(value))
        version = value.value // 1000, value.value % 1000 // 10
        self.compiler = open_compiler(self.compute, version)
        context, stream = c_void_p(), c_void_p()
        driver.cuDevicePrimaryCtxRetain(byref(context), self._device)
        self.context = context
        try:
            self.enter()
            driver.cuStreamCreate(byref(stream), NON_BLOCKING)
            self.stream = stream
        except BaseException:
            self.close()
            raise

    def _attribute(self, which):
        value = c_int()
        self.driver.cuDeviceGetAttribute(byref(value), which, self._device)
        return value.value

    def enter(self):
        """Make its context that of the calling thread, as every call needs it."""
        if self.context is None:
            raise KshipraError(f"the GPU computes no more ({self.failed or 'it was closed'}); "
                               "load the model again")
        self.driver.cuCtxSetCurrent(self.context)

    @contextlib.contextmanager
    def at_work(self):
        """Enter for a piece of work; if the driver fails in it, give back everything."""
        self.enter()
        try:
            yield self
        except DriverError as error:
            self.failed = str(error)
            self.close()
            raise

    def alloc(self, n_bytes):
        """Return the address of n_bytes of uninitialised memory of the card."""
        address = c_uint64()
        self.driver.cuMemAlloc_v2(byref(address), max(n_bytes, 16))
        self.held[address.value] = n_bytes
        return address.value

    def free(self, address):
        if self.held.pop(address, None) is not None:
            self.driver.cuMemFree_v2(address)

    def alloc_pinned(self, n_bytes):
        """Return the address of host memory that the card can copy to and from by itself."""
        address = c_void_p()
        self.driver.cuMemHostAlloc(byref(address), max(n_bytes, 16), 0)
        self.pinned.add(address.value)
        return address.value

    def free_pinned(self, address):
        if address in self.pinned:
            self.pinned.remove(address)
            self.driver.cuMemFreeHost(address)

    def upload(self, address, source, n_bytes):
        """Copy n_bytes of the host's memory, from address `source`, to the card."""
        if n_bytes:
            self.driver.cuMemcpyHtoD_v2(address, source, n_bytes)

    def uploaded(self, data):
        """Return the address, on the card, of a copy of an array or bytes."""
        view = memoryview(data).cast("B")
        if view.readonly:
            view = memoryview(bytearray(view))
        address = self.alloc(view.nbytes)
        if view.nbytes:
            self.upload(address, kshipra.address_of(view), view.nbytes)
        return address

    def download(self, address, n_bytes):
        """Return n_bytes of the card's memory."""
        out = ctypes.create_string_buffer(n_bytes)
        if n_bytes:
            self.driver.cuMemcpyDtoH_v2(out, address, n_bytes)
        return out.raw

    def functions(self, source, symbols):
        """Return {symbol: function} of a compiled source."""
        code, module = self.compiler.compile(source), c_void_p()
        self.driver.cuModuleLoadData(byref(module), ctypes.create_string_buffer(code, len(code)))
        self.modules.append(module)
        found = {}
        for symbol in symbols:
            function = c_void_p()
            self.driver.cuModuleGetFunction(byref(function), module, symbol.encode())
            found[symbol] = function
        return found

    def drop_graph(self, executable):
        if executable in self.graphs:
            self.graphs.remove(executable)
            self.driver.cuGraphExecDestroy(executable)

    def synchronize(self):
        self.driver.cuStreamSynchronize(self.stream)

    def close(self):
        """Give back all that it holds, as far as a driver that failed lets it."""
        if self.context is None:
            return

        def quietly(call, *args):
            with contextlib.suppress(DriverError):
                call(*args)

        driver = self.driver
        quietly(driver.cuCtxSetCurrent, self.context)
        if self.stream is not None:
            quietly(driver.cuStreamSynchronize, self.stream)
        for address in list(self.held):
            quietly(self.free, address)
        for address in list(self.pinned):
            quietly(self.free_pinned, address)
        for graph in list(self.graphs):
            quietly(self.drop_graph, graph)
        for module in self.modules:
            quietly(driver.cuModuleUnload, module)
        self.modules.clear()
        if self.stream is not None:
            quietly(driver.cuStreamDestroy_v2, self.stream)
        quietly(driver.cuDevicePrimaryCtxRelease_v2, self._device)
        self.context = self.stream = None


class DeviceArena:
    """The memory of a DevicePool's pages: sliced like bytes, wherever the bytes lie.

    The pages of the last layers are on the card, those of the first `split` bytes of each page
    in the host's memory.   address: of the card's part   host: the host's, anonymous memory
    """

    def __init__(self, device, n_pages, page_bytes, split, host):
        self.device, self.page_bytes, self.split, self.host = device, page_bytes, split, host
        self.card_bytes = page_bytes - split
        self.address = device.alloc(n_pages * self.card_bytes)
        # Zeros, as the host's pages are: what lies behind a sequence's end is never looked at,
        # but copied with its page.
        device.driver.cuMemsetD8_v2(self.address, 0, max(n_pages * self.card_bytes, 16))

    def _pieces(self, a, b):
        """Yield (whether on the card, address or offset, offset from a, length)."""
        at = a
        while at < b:
            page, off = divmod(at, self.page_bytes)
            on_card = off >= self.split
            end = min(b, page * self.page_bytes + (self.page_bytes if on_card else self.split))
            yield (on_card, self.address + page * self.card_bytes + off - self.split
                   if on_card else at, at - a, end - at)
            at = end

    def __getitem__(self, part):
        out = []
        for on_card, at, _, n in self._pieces(part.start, part.stop):
            if on_card:
                self.device.enter()
                out.append(self.device.download(at, n))
            else:
                out.append(self.host[at:at + n])
        return b"".join(out)

    def __setitem__(self, part, data):
        data = bytearray(data)
        for on_card, at, off, n in self._pieces(part.start, part.stop):
            piece = data[off:off + n]
            if on_card:
                self.device.enter()
                self.device.upload(at, kshipra.address_of(piece), n)
            else:
                self.host[at:at + n] = piece


class DevicePool(PagePool):
    """A PagePool whose last layers' keys and values lie on the card.

    n_host: layers whose keys and values stay with the processor
    host: the same pool, as machine code for the processor sees it: with the host's arena
    """

    def __init__(self, device, n_host, *args):
        super().__init__(*args)
        split = self.layer_offs[n_host] if n_host < len(self.layers) else self.page_bytes
        self.host = PagePool.__new__(PagePool)
        vars(self.host).update(vars(self))
        with device.at_work():
            self.arena = DeviceArena(device, self.n_pages, self.page_bytes, split, self.arena)
        weakref.finalize(self, give_back, device, self.arena.address)


def give_back(device, address):
    """Free memory of the card whose owner is gone, if the card still works."""
    with contextlib.suppress(KshipraError):
        device.enter()
        device.free(address)


class DeviceWeights:
    """The weights, angles and lists of experts that programs read, on the card.

    held: by id, (what was copied, ..): holding it keeps the id its own
    ropes: by id, (RopeTable, address of its cosines, of its sines, [positions filled in])
    n_bytes: copied so far
    """

    def __init__(self, device):
        self.device, self.held, self.ropes, self.n_bytes = device, {}, {}, 0

    def vector(self, values):
        """Return the address of a copy of an array('f')."""
        if id(values) not in self.held:
            self.held[id(values)] = values, self.device.uploaded(values)
            self.n_bytes += 4 * len(values)
        return self.held[id(values)][1]

    def matrix(self, w):
        """Return (address of a copy, Format) of a Tensor, row after row."""
        if id(w) not in self.held:
            n_bytes = w.n_bytes if w.contiguous else 4 * w.size
            if w.contiguous:
                address = self.device.alloc(w.n_bytes)
                self.device.upload(address, w.address(), w.n_bytes)
            else:
                address = self.device.uploaded(w.floats())
            self.held[id(w)] = w, address
            self.n_bytes += n_bytes
        return self.held[id(w)][1], w.format if w.contiguous else kshipra.FORMATS["F32"]

    def experts(self, w):
        """Return (address of the addresses, Format) of a list of matrices of one kind."""
        if id(w) not in self.held:
            found = [self.matrix(expert) for expert in w]
            self.held[id(w)] = w, self.device.uploaded(array("q", [at for at, _ in found]))
        return self.held[id(w)][1], self.matrix(w[0])[1]

    def angles(self, table, n_positions):
        """Return the addresses of a RopeTable's cosines and of its sines."""
        if id(table) not in self.ropes:
            n_bytes = 4 * n_positions * len(table.freqs)
            self.ropes[id(table)] = (table, self.device.alloc(n_bytes),
                                     self.device.alloc(n_bytes), [0, n_positions])
        return self.ropes[id(table)][1:3]

    def fill(self, last):
        """Bring the cosines and sines of positions up to `last`, and some more, to the card."""
        for table, cos, sin, state in self.ropes.values():
            filled, n_positions = state
            if last >= filled:
                table.rows(min((last // CHUNK + 1) * CHUNK, n_positions) - 1)
                half = len(table.freqs)
                end = min(len(table.sin) // half, n_positions)
                for address, values in ((cos, table.cos), (sin, table.sin)):
                    part = values[filled * half:end * half]
                    self.device.upload(address + 4 * filled * half, part.buffer_info()[0],
                                       4 * len(part))
                state[0] = end


# ---------------------------------------------------------------------------------------
# 4. Kernels
#
# A kernel is CUDA C text, named after the operation of kshipra's chapter 4 that it must equal,
# bit for bit.  Two things make that possible.  Every float operation is one of the functions
# that round once (__fmul_rn and its like, which no compiler fuses).  And every sum keeps the
# order of the definition: threads compute the terms side by side, put them into memory that
# they share, and then one thread for each sum, or eight for the eight lanes, adds them in order.
# Sums of integers are exact in any order, so dot products of int8 are free to go as they like.
#
# What a format of chapter 1 looks like is read off its row of FORMATS: where the bits of weight
# i stand is a function linear in the bits of i, and `linear` writes it down as C.
#
# Not here: tensor cores.

PREAMBLE = r"""
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;

#define ROW(x, row, row_bytes) ((const float *)((const char *)(x) + (i64)(row) * (row_bytes)))
#define ROW_OUT(x, row, row_bytes) ((float *)((char *)(x) + (i64)(row) * (row_bytes)))
#define ALL 0xffffffffu

__device__ __forceinline__ float half_to_float(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

__device__ __forceinline__ u16 float_to_half(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

// A float of four bits of exponent and three of fraction; 127 means 0.
__device__ __forceinline__ float ue4m3_to_float(int b) {
    int e = b >> 3 & 15, f = b & 7;
    float unit = __int_as_float((max(e, 1) + 116) << 23);
    return b == 127 ? 0.0f : __fmul_rn((float)(e ? f + 8 : f), unit);
}

// The sum of four products of int8: an instruction from compute capability 6.1 on.
__device__ __forceinline__ int dot4(int a, int b, int sum) {
#if __CUDA_ARCH__ >= 610
    return __dp4a(a, b, sum);
#else
    for (int i = 0; i < 32; i += 8)
        sum += (signed char)(a >> i) * (signed char)(b >> i);
    return sum;
#endif
}

__device__ __forceinline__ u32 load2(const u8 *p) { return *(const u16 *)p; }

__device__ __forceinline__ bool is_wild(float x) {
    return (__float_as_int(x) & 0x7f800000) == 0x7f800000;
}

// An infinity that later steps would hide becomes a NaN, which they cannot.
__device__ __forceinline__ float finite(float x) {
    return is_wild(x) ? __int_as_float(0x7fc00000) : x;
}

// Reference exp (4.1); a NaN loses every comparison and so stays.
__device__ __forceinline__ float exp_of(float x) {
    x = x < $EXP_MIN ? $EXP_MIN : x > $EXP_MAX ? $EXP_MAX : x;
    int k = __float2int_rn(__fmul_rn(x, $LOG2_E));
    float n = (float)k;
    float r = __fsub_rn(__fsub_rn(x, __fmul_rn(n, $LN2_HI)), __fmul_rn(n, $LN2_LO));
    float p = __fmul_rn(r, $P0);
    p = __fmul_rn(__fadd_rn(p, $P1), r);
    p = __fmul_rn(__fadd_rn(p, $P2), r);
    p = __fmul_rn(__fadd_rn(p, $P3), r);
    p = __fmul_rn(__fadd_rn(p, $P4), r);
    p = __fadd_rn(p, $P5);
    float y = __fadd_rn(__fadd_rn(__fmul_rn(p, __fmul_rn(r, r)), r), 1.0f);
    return __fmul_rn(y, __int_as_float((k + 127) << 23));
}

__device__ __forceinline__ float silu_of(float x) {
    return __fdiv_rn(x, __fadd_rn(exp_of(-x), 1.0f));
}

__device__ __forceinline__ float gelu_of(float x) {
    float cube = __fmul_rn(__fmul_rn(x, x), x);
    float u = __fadd_rn(x, __fmul_rn(cube, $GELU_CUBIC));
    return __fdiv_rn(x, __fadd_rn(exp_of(__fmul_rn(u, $GELU_SLOPE)), 1.0f));
}

__device__ __forceinline__ float gelu_erf_of(float x) {
    const float c[] = {$ERFC};
    float z = __fmul_rn(fabsf(x), $ROOT_HALF), p = c[0];
    float t = __fdiv_rn(1.0f, __fadd_rn(__fmul_rn(z, 0.5f), 1.0f));
    #pragma unroll
    for (int i = 1; i < sizeof c / 4; i++) p = __fadd_rn(__fmul_rn(p, t), c[i]);
    float e = __fmul_rn(__fmul_rn(t, 0.5f), exp_of(__fsub_rn(p, __fmul_rn(z, z))));
    return __fmul_rn(x, x < 0.0f ? e : __fsub_rn(1.0f, e));
}

__device__ __forceinline__ float swiglu_clamped_of(float gate, float up) {
    gate = finite(gate), up = finite(up);
    gate = gate > $LIMIT ? $LIMIT : gate;
    up = __fadd_rn(up > $LIMIT ? $LIMIT : up < -$LIMIT ? -$LIMIT : up, 1.0f);
    float e = __fadd_rn(exp_of(__fmul_rn(gate, $SWIGLU_SLOPE)), 1.0f);
    return __fmul_rn(__fdiv_rn(gate, e), up);
}

__device__ __forceinline__ float softcap_of(float x, float cap) {
    float u = __fdiv_rn(finite(x), cap);
    float e = __fadd_rn(exp_of(__fmul_rn(u, 2.0f)), 1.0f);
    return __fmul_rn(__fsub_rn(1.0f, __fdiv_rn(2.0f, e)), cap);
}

// tree_sum of lanes that lie in eight threads side by side; each of them gets it.
__device__ __forceinline__ float tree_sum(float lane) {
    for (int step = 1; step < 8; step *= 2)
        lane = __fadd_rn(lane, __shfl_xor_sync(ALL, lane, step));
    return lane;
}

// lane_sum of n terms of a row x, by a whole block; every thread gets it.
//   term 0: x    1: x * x    2: (x - mean) * (x - mean)    3: exp(x - mean)
#define SUM_TILE 2048
__device__ float lane_sum(int term, const float *x, int n, float mean) {
    __shared__ float tile[SUM_TILE];
    __shared__ float total;
    float lane = 0.0f;
    for (int at = 0; at < n; at += SUM_TILE) {
        int end = min(SUM_TILE, n - at);
        for (int i = threadIdx.x; i < end; i += blockDim.x) {
            float v = x[at + i];
            if (term >= 2) v = __fsub_rn(v, mean);
            tile[i] = term == 0 ? v : term == 3 ? exp_of(v) : __fmul_rn(v, v);
        }
        __syncthreads();
        if (threadIdx.x < 8)
            #pragma unroll 8
            for (int i = threadIdx.x; i < end; i += 8) lane = __fadd_rn(lane, tile[i]);
        __syncthreads();
    }
    if (threadIdx.x < 32) {
        lane = tree_sum(lane);
        if (threadIdx.x == 0) total = lane;
    }
    __syncthreads();
    lane = total;
    __syncthreads();                    // before the next sum of this block writes it
    return lane;
}

// `width` bits of a block from bit `at` up; no byte behind the last one is read.
__device__ __forceinline__ u32 bits_of(const u8 *block, int at, int width) {
    u32 v = block[at >> 3];
    if ((at & 7) + width > 8) v |= (u32)block[(at >> 3) + 1] << 8;
    return v >> (at & 7) & ((1u << width) - 1);
}
"""


def c_float(x):
    """Return C text for a float32."""
    return f"__int_as_float({f32_bits(x)})" if x else "0.0f"


def preamble():
    """Return PREAMBLE with the numbers of chapter 4 in it."""
    names = {"ROOT_HALF": ROOT_HALF, "LIMIT": SWIGLU_LIMIT, "SWIGLU_SLOPE": SWIGLU_SLOPE,
             "EXP_MIN": EXP_MIN, "EXP_MAX": EXP_MAX, "LOG2_E": LOG2_E, "LN2_HI": LN2_HI,
             "LN2_LO": LN2_LO, "GELU_CUBIC": GELU_CUBIC, "GELU_SLOPE": GELU_SLOPE,
             **{f"P{i}": c for i, c in enumerate(EXP_POLY)}}
    return string.Template(PREAMBLE).substitute({k: c_float(v) for k, v in names.items()},
                                                ERFC=", ".join(map(c_float, ERFC_POLY)))


# 4.1 Formats.  For a block format F this writes
#
#   codes_F(block, q)      four codes, those of weights 4 q .. 4 q + 3, a byte each, before
#                          BIAS is taken from each
#   scale_F(block, s), low_F(block, s)      of sub-block s

def linear(values, name):
    """Return C text for values[i], where i is the C variable `name`.  It has to be linear in
    the bits of i, as the places in a block are."""
    steps = [(bit, values[1 << bit] - values[0]) for bit in range((len(values) - 1).bit_length())]
    if any(v != values[0] + sum(step for bit, step in steps if i >> bit & 1)
           for i, v in enumerate(values)):
        raise KshipraError("device cuda cannot read this number format yet; use device native")
    return " + ".join([str(values[0])] + [f"({name} >> {bit} & 1) * {step}"
                                          for bit, step in steps if step])


def _word_loader(format, places):
    """Return C text of a function that loads four bytes at any of these places of a block."""
    step = next(step for step in (4, 2, 1)
                if not any(at % step for at in (format.block_bytes, *places)))
    return {4: "*(const u32 *)p", 2: "load2(p) | load2(p + 2) << 16",
            1: "p[0] | p[1] << 8 | p[2] << 16 | (u32)p[3] << 24"}[step]


def _runs_text(runs, step, block, name):
    """Return C text for the bits of integer `name` of runs; with step 4, of four side by side."""
    places = [(at + i, shift, width) for at, n, shift, width in runs for i in range(0, n, step)]
    ats, shifts, widths = zip(*places)
    at, shift = linear(ats, name), linear(shifts, name)
    masks = [((1 << width) - 1) * (0x01010101 if step == 4 else 1) for width in widths]
    mask = linear(masks, name) if len(set(masks)) > 1 else f"{masks[0]:#x}u"
    word = f"word_{block}(block + {at})" if step == 4 else f"block[{at}]"
    return f"(({word}) >> ({shift}) & ({mask}))"


def _field_text(format, field, step, name):
    """Return C text for integer `name` (or four of them, step 4) of a Field, without its bias."""
    text = _runs_text(field.runs, step, format.name, name)
    if field.upper:
        text += f" | {_runs_text(field.upper, step, format.name, name)} << {field.upper_bit}"
    if field.spread:                    # four bits to four bytes, without a carry
        text += (f" | (((block[{field.spread[0]} + ({name} >> 1)] >> 4 * ({name} & 1)) & 15)"
                 " * 0x204081u & 0x1010101u) << 4")
    return text


def _bit_field_text(field, name):
    """Return C text for integer `name` of a BitField."""
    place, parts = 0, []
    for width, bits in field.parts:
        parts.append(f"bits_of(block, {linear(bits, name)}, {width}) << {place}")
        place += width
    text = "(int)(" + " | ".join(parts) + ")"
    return f"(2 * {text} + 1)" if field.odd else f"({text} - {field.bias})"


def _scale_int_text(format, field):
    """Return C text for scale or minimum `s` of a block, an integer."""
    if isinstance(field, kshipra.BitField):
        return _bit_field_text(field, "s")
    text = _field_text(format, field, 1, "s")
    if field.runs[0][3] == 8:
        return f"(signed char)({text})"
    return f"((int)({text}) - {field.bias})"


def _codes_text(format):
    """Return (C text of the body of codes_F, the bias, tables that it needs)."""
    codes, F = format.codes, format.name
    if isinstance(codes, kshipra.Trits):
        body, first = [], 0
        for at, n, digits in codes.runs:
            body.append(f"if (q < {(first + n * digits) // 4}) {{ int i = 4 * q - {first}; "
                        f"at = {at} + i % {n}; digit = i / {n}; }}")
            first += n * digits
        return ("int at, digit; " + " else ".join(body) + """
    u32 out = 0;
    for (int k = 0; k < 4; k++) {
        u32 v = block[at + k];
        for (int d = 0; d < digit; d++) v = v * 3 & 255;
        out |= (v * 3 >> 8) << 8 * k;
    }
    return out;""", 1, "")
    if isinstance(codes, kshipra.GridCodes):
        words = array("I", b"".join(codes.patterns()))
        per = codes.length // 4
        table = f"__device__ const u32 grid_{F}[] = {{{', '.join(map(hex, words))}}};\n"
        half = "q & 1" if per == 2 else "0"
        index = _bit_field_text(codes.index, "i")
        body = (f"int i = q >> {per - 1};\n"
                f"    u32 c = grid_{F}[{index} * {per} + ({half})];\n")
        if codes.signs:
            body += f"    int e = q >> 1;\n    u32 signs = {_bit_field_text(codes.signs, 'e')};\n"
            if codes.even:
                body += "    signs |= (__popc(signs) & 1) << 7;\n"
            body += ("    u32 ones = (signs >> 4 * (q & 1) & 15) * 0x204081u & 0x1010101u;\n"
                     "    c = (c ^ ones * 255) + ones;      // no code is 0, so nothing carries\n")
        return body + "    return c;", 0, table
    text = _field_text(format, codes, 4, "q")
    if codes.book:
        table = (f"__device__ const signed char book_{F}[] = "
                 f"{{{', '.join(map(str, codes.book))}}};\n")
        return (f"u32 c = {text}, out = 0;\n    for (int k = 0; k < 32; k += 8)\n"
                f"        out |= (u32)(u8)book_{F}[c >> k & 15] << k;\n    return out;", 0, table)
    return f"return {text};", codes.bias, ""


FORMAT = r"""
// $F: blocks of $block_len weights in $block_bytes bytes, sub-blocks of $sub_len
${tables}__device__ __forceinline__ u32 word_$F(const u8 *p) { return $load; }

__device__ __forceinline__ u32 codes_$F(const u8 *block, int q) {
    $codes
}

__device__ __forceinline__ float scale_$F(const u8 *block, int s) {
    return $scale;
}

__device__ __forceinline__ float low_$F(const u8 *block, int s) {
    return $low;
}
"""

FLOAT_FORMAT = r"""
__device__ __forceinline__ float float_$F(const u8 *p) { return $load; }
"""
FLOAT_LOADS = {"F32": "*(const float *)p", "F16": "half_to_float(load2(p))",
               "BF16": "__int_as_float(load2(p) << 16)"}


def format_source(format):
    """Return the C functions that read a format."""
    F = format.name
    if format.sub_len is None:
        return string.Template(FLOAT_FORMAT).substitute(F=F, load=FLOAT_LOADS[F])
    codes, bias, tables = _codes_text(format)
    places = [at for name in ("runs", "upper") for at, *_ in getattr(format.codes, name, ())]
    half = "half_to_float(load2(block + {}))"
    if isinstance(format.d, kshipra.BitField):
        d = f"half_to_float({_bit_field_text(format.d, '0')})"
    elif format.d == "e8m0":            # 2 ** (e - 128), below 2 a denormal
        e = f"block[{format.d_off}]"
        d = f"__int_as_float({e} < 2 ? (1 << 21) << {e} : ({e} - 1) << 23)"
    elif format.d == "ue4m3":           # of each sub-block
        d = f"ue4m3_to_float(block[{format.d_off} + s])"
    elif format.d == "f16":
        d = half.format(format.d_off)
    else:
        raise KshipraError(f"device cuda cannot read {F} yet; use device native")
    if format.unit != 1:
        d = f"__fmul_rn({d}, {c_float(format.unit)})"
    scale, low = d, "0.0f"
    if format.scales:
        scale = f"__fmul_rn((float)({_scale_int_text(format, format.scales)}), {d})"
    if format.m_off is not None:
        low = half.format(format.m_off)
        if format.mins:
            low = f"__fmul_rn((float)({_scale_int_text(format, format.mins)}), -{low})"
    return string.Template(FORMAT).substitute(
        F=F, block_len=format.block_len, block_bytes=format.block_bytes, sub_len=format.sub_len,
        tables=tables, load=_word_loader(format, places), codes=codes, scale=scale, low=low)


def bias_of(format):
    """Return what codes_F has too much in each byte."""
    return _codes_text(format)[1]


# 4.2 The kernels.  Each is a row: its parameters, the threads of a block, the blocks of a
# launch as a function of (the recorded fields, the recorded number of chunks), and the text.
# Names with a $ are filled in from the recorded parameters, such as the format of the weights.

class Kernel(NamedTuple):
    """A row of KERNELS.

    parameters: C text; integers are i64, and everything takes eight bytes
    threads: of a block   blocks: (fields, n_chunks) -> (x, y, z)
    text: the body, a string.Template   values: recorded parameters -> what to fill in
    """
    parameters: str
    threads: int
    blocks: object
    text: str
    values: object = lambda *parameters: {}


KERNELS = {}
ELEMENTS = 1024                         # of a block of an element-wise kernel
OUTPUTS, SUB_TILE = 8, 128              # matvec: weight rows of a block, sub-blocks of a step


def blocks_by_row(fields, n_chunks):
    return n_chunks, 1, 1


def _format_values(format, n_in, *rest):
    """Return what a kernel that reads a block format, or floats, has to fill in."""
    values = {"F": format.name, "n_in": n_in, "row_bytes": format.n_bytes(n_in)}
    if format.sub_len is None:
        return dict(values, item_bytes=format.block_bytes)
    return dict(values, block_len=format.block_len, block_bytes=format.block_bytes,
                sub_len=format.sub_len, bias=bias_of(format), lows=int(format.m_off is not None),
                quads=format.sub_len // 4, subs=format.block_len // format.sub_len)


KERNELS["embed"] = Kernel(
    "const int *tokens, const u8 *w, float *y, i64 y_stride", 128, blocks_by_row, r"""
    const u8 *row = w + tokens[blockIdx.x] * (i64)$row_bytes;
    float *out = ROW_OUT(y, blockIdx.x, y_stride);
    for (int q = threadIdx.x; q < $n_in / 4; q += blockDim.x) {
        const u8 *block = row + q / ($block_len / 4) * $block_bytes;
        int in = q % ($block_len / 4), s = in / $quads;
        u32 c = codes_$F(block, in);
        float scale = scale_$F(block, s), low = low_$F(block, s);
        for (int k = 0; k < 4; k++) {
            float v = __fmul_rn(scale, (float)((signed char)(c >> 8 * k) - $bias));
            out[4 * q + k] = $lows ? __fadd_rn(v, low) : v;
        }
    }""", _format_values)

KERNELS["embed_float"] = KERNELS["embed"]._replace(text=r"""
    const u8 *row = w + tokens[blockIdx.x] * (i64)$row_bytes;
    float *out = ROW_OUT(y, blockIdx.x, y_stride);
    for (int i = threadIdx.x; i < $n_in; i += blockDim.x)
        out[i] = float_$F(row + i * $item_bytes);""")

# quantize_activations.  A warp takes a block of 32.  All rows' codes come first, then all
# scales, then the sums of the two halves of each block's codes, two int a block.
KERNELS["quantize"] = Kernel(
    "const float *x, char *xq, i64 n_blocks, i64 n_rows", 128,
    lambda f, n: (-(-f["n_blocks"] * f["n_rows"] // 4), 1, 1), r"""
    i64 total = n_blocks * n_rows, b = blockIdx.x * 4 + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31;
    if (b >= total) return;
    float v = x[b * 32 + lane];
    int peak = __float_as_int(v) & 0x7fffffff;
    for (int step = 16; step; step /= 2) peak = max(peak, __shfl_xor_sync(ALL, peak, step));
    float amax = __int_as_float(peak);
    int code = amax < $tiny ? 0 : __float2int_rn(__fmul_rn(v, __fdiv_rn(127.0f, amax)));
    int sum = code;
    for (int step = 8; step; step /= 2) sum += __shfl_xor_sync(ALL, sum, step);
    xq[b * 32 + lane] = (char)code;
    float *scales = (float *)(xq + total * 32);
    int *sums = (int *)(scales + total);
    if (lane == 0) scales[b] = amax < $tiny ? 0.0f : finite(__fdiv_rn(amax, 127.0f));
    if ((lane & 15) == 0) sums[2 * b + (lane >> 4)] = sum;""",
    lambda: {"tiny": c_float(TINY)})

# matmul_naive for $rows rows of activations.  A block of threads takes 8 outputs, a warp each;
# its lanes take sub-blocks side by side, and unpack each once for all rows.  The two terms of
# a sub-block go to shared memory.  After each tile of sub-blocks one thread for each output
# and row adds the terms, in order.
#
# On paper, for Q4_K and one row, counted in the code that NVRTC 12.9 makes for sm_90: a warp
# spends 105 instructions on 32 sub-blocks (576 bytes of weights), and the adding 20 for each 8
# terms, so 4000 for the 18432 bytes of a tile, 0.22 a byte; 32 registers and 9.2 KB of shared
# memory leave room for 8 blocks of 256 threads on an SM, all that it holds.  An SM begins four
# instructions a cycle.  So an RTX 3060 (28 SMs, 1.78 GHz) could unpack 910 GB/s and reads 360;
# an H100 SXM (132 SMs, 1.7 GHz) 4.1 TB/s, and reads 3.35: there 70 % takes 57 % of what it can
# begin.  Cards before 6.1 lack dp4a and need several instructions for each of the eight.
MATVEC = r"""
    __shared__ float terms[$rows][8][$tile * (1 + $lows) + 1];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, mine = threadIdx.x >> 3;
    int o = blockIdx.x * 8 + warp, first = blockIdx.y * $rows;
    const int n_sub = $n_in / $sub_len;
    $weight
    const u8 *w_row = weight + o * (i64)$row_bytes;
    const float *x_scales = (const float *)(x + x_rows * $n_in);
    const int *x_sums = (const int *)(x_scales + x_rows * ($n_in / 32));
    float y_here = 0.0f;
    for (int tile = 0; tile < n_sub; tile += $tile) {
        int end = min($tile, n_sub - tile);
        if (o < n_out)
            for (int i = lane; i < end; i += 32) {
                int sub = tile + i, s = sub % $subs;
                const u8 *block = w_row + (i64)(sub / $subs) * $block_bytes;
                int codes[$quads];
                #pragma unroll
                for (int q = 0; q < $quads; q++) codes[q] = codes_$F(block, s * $quads + q);
                float scale = scale_$F(block, s), low = low_$F(block, s);
                #pragma unroll
                for (int r = 0; r < $rows; r++) {
                    i64 row = min((i64)(first + r), n_rows - 1);
                    $x_row
                    const int4 *xc = (const int4 *)(x + row * $n_in + sub * $sub_len);
                    int dot = 0;
                    #pragma unroll
                    for (int q = 0; q < $quads / 4; q++) {
                        int4 v = xc[q];
                        dot = dot4(codes[4 * q], v.x, dot);
                        dot = dot4(codes[4 * q + 1], v.y, dot);
                        dot = dot4(codes[4 * q + 2], v.z, dot);
                        dot = dot4(codes[4 * q + 3], v.w, dot);
                    }
                    i64 b = row * ($n_in / 32) + sub * $sub_len / 32;
                    int sum = $sub_len == 32 ? x_sums[2 * b] + x_sums[2 * b + 1]
                                             : x_sums[2 * b + (sub & 1)];
                    float x_scale = x_scales[b];
                    float *term = &terms[r][warp][i * (1 + $lows)];
                    term[0] = __fmul_rn((float)(dot - $bias * sum), __fmul_rn(scale, x_scale));
                    if ($lows) term[$lows] = __fmul_rn(low, __fmul_rn(x_scale, (float)sum));
                }
            }
        __syncthreads();
        if (mine < $rows) {
            const float *term = terms[mine][threadIdx.x & 7];
            #pragma unroll 8
            for (int i = 0; i < end * (1 + $lows); i++) y_here = __fadd_rn(y_here, term[i]);
        }
        __syncthreads();
    }
    int out = blockIdx.x * 8 + (threadIdx.x & 7);
    if (mine < $rows && out < n_out && first + mine < n_rows)
        ROW_OUT(y, first + mine, y_stride)[out] = y_here;"""

ROWS_AT_ONCE = (1, 2, 4)                # of activations that a block of a matvec takes


def _matvec_values(format, n_in, rows):
    return dict(_format_values(format, n_in), rows=rows, tile=SUB_TILE,
                weight="const u8 *weight = w; i64 x_rows = n_rows;", x_row="")


KERNELS["matvec"] = Kernel(
    "const u8 *w, const char *x, float *y, i64 n_out, i64 n_rows, i64 y_stride, i64 rows", 256,
    lambda f, n: (-(-f["n_out"] // OUTPUTS), -(-f["n_rows"] // f["rows"]), 1), MATVEC,
    _matvec_values)

# Reference._matmul_picks: the weight is that of the pick's expert, the row what it came from.
PICKED = ("int expert = experts[blockIdx.y]; const u8 *weight = w[expert];"
          " i64 x_rows = n_rows / per_row;")
PICK_PARAMETERS = ("const u8 *const *w, const $x *x, float *y, i64 n_out, i64 n_rows, "
                   "i64 y_stride, const int *experts, i64 per_row")
KERNELS["pick"] = Kernel(
    PICK_PARAMETERS.replace("$x", "char"), 256,
    lambda f, n: (-(-f["n_out"] // OUTPUTS), f["n_rows"], 1), MATVEC,
    lambda format, n_in: dict(_format_values(format, n_in), rows=1, tile=SUB_TILE,
                              weight=PICKED, x_row="row = row / per_row;"))

# lane_sum of products: eight threads for an output, one for each lane.
MATVEC_FLOAT = r"""
    int lane = threadIdx.x & 7, o = blockIdx.x * 32 + (threadIdx.x >> 3);
    i64 row = blockIdx.y;
    $weight
    const u8 *w_row = weight + min(o, (int)n_out - 1) * (i64)$row_bytes;
    const float *x_row = x + row * $n_in;
    float sum = 0.0f;
    #pragma unroll 4
    for (int i = lane; i < $n_in; i += 8)
        sum = __fadd_rn(sum, __fmul_rn(float_$F(w_row + i * $item_bytes), x_row[i]));
    sum = tree_sum(sum);
    if (lane == 0 && o < n_out) ROW_OUT(y, blockIdx.y, y_stride)[o] = sum;"""

KERNELS["matvec_float"] = Kernel(
    "const u8 *w, const float *x, float *y, i64 n_out, i64 n_rows, i64 y_stride", 256,
    lambda f, n: (-(-f["n_out"] // 32), f["n_rows"], 1), MATVEC_FLOAT,
    lambda *p: dict(_format_values(*p), weight="const u8 *weight = w;"))
KERNELS["pick_float"] = Kernel(
    PICK_PARAMETERS.replace("$x", "float"), 256,
    lambda f, n: (-(-f["n_out"] // 32), f["n_rows"], 1), MATVEC_FLOAT,
    lambda *p: dict(_format_values(*p), weight="const u8 *weight = w[experts[blockIdx.y]]; "
                                               "row = row / per_row;"))

# Element by element: x and y are one element of each input, c the number.
ELEMENTWISE = {
    "add": "__fadd_rn(x, y)",
    "mul": "__fmul_rn(x, y)",
    "scale": "__fmul_rn(x, c)",
    "silu": "silu_of(x)",
    "gelu": "gelu_of(x)",
    "gelu_erf": "gelu_erf_of(x)",
    "swiglu_clamped": "swiglu_clamped_of(x, y)",
    "silu_mul": "__fmul_rn(silu_of(x), y)",
    "gelu_mul": "__fmul_rn(gelu_of(x), y)",
    "softcap": "softcap_of(x, c)",
}


def _elementwise(formula):
    """Return the Kernel of a row of ELEMENTWISE."""
    parameters = "const float *x, i64 x_row_bytes, float *out, i64 out_row_bytes, i64 n"
    text = "    float *to = ROW_OUT(out, blockIdx.y, out_row_bytes);\n"
    text += "    const float *xs = ROW(x, blockIdx.y, x_row_bytes);\n"
    loads = "float x = xs[i];"
    if re.search(r"\by\b", formula):
        parameters += ", const float *y, i64 y_row_bytes"
        text += "    const float *ys = ROW(y, blockIdx.y, y_row_bytes);\n"
        loads += " float y = ys[i];"
    if re.search(r"\bc\b", formula):
        parameters += ", i64 c_bits"
        text += "    float c = __int_as_float((int)c_bits);\n"
    text += (f"    int first = blockIdx.x * {ELEMENTS}, end = min((int)n, first + {ELEMENTS});\n"
             "    for (int i = first + threadIdx.x; i < end; i += blockDim.x) {\n"
             f"        {loads}\n        to[i] = {formula};\n    }}")
    return Kernel(parameters, 256,
                  lambda f, n: (-(-f["n"] // ELEMENTS), n // f["slices"], 1), text)


KERNELS.update({name: _elementwise(formula) for name, formula in ELEMENTWISE.items()})

KERNELS["gate"] = Kernel(
    "const float *x, i64 x_row_bytes, const float *g, i64 g_row_bytes, float *out, "
    "i64 out_row_bytes, i64 n", 256, blocks_by_row, r"""
    const float *row = ROW(x, blockIdx.x, x_row_bytes);
    float *to = ROW_OUT(out, blockIdx.x, out_row_bytes);
    float e = exp_of(-ROW(g, blockIdx.x, g_row_bytes)[0]);
    float weight = __fdiv_rn(1.0f, __fadd_rn(e, 1.0f));
    for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = __fmul_rn(row[i], weight);""")

KERNELS["rms_norm"] = Kernel(
    "const float *x, i64 x_row_bytes, float *out, i64 out_row_bytes, const float *w, i64 n, "
    "i64 runs, i64 eps_bits", 256, lambda f, n: (n * f["runs"], 1, 1), r"""
    int row = blockIdx.x / (int)runs, run = blockIdx.x % (int)runs;
    const float *part = ROW(x, row, x_row_bytes) + run * n;
    float *to = ROW_OUT(out, row, out_row_bytes) + run * n;
    float mean = __fdiv_rn(lane_sum(1, part, n, 0.0f), (float)n);
    float root = __fsqrt_rn(__fadd_rn(mean, __int_as_float((int)eps_bits)));
    float scale = __fdiv_rn(1.0f, root);
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        to[i] = __fmul_rn(__fmul_rn(part[i], scale), w[i]);""")

KERNELS["layer_norm"] = Kernel(
    "const float *x, i64 x_row_bytes, float *out, i64 out_row_bytes, const float *w, "
    "const float *b, i64 n, i64 eps_bits", 256, blocks_by_row, r"""
    const float *row = ROW(x, blockIdx.x, x_row_bytes);
    float *to = ROW_OUT(out, blockIdx.x, out_row_bytes);
    float mean = __fdiv_rn(lane_sum(0, row, n, 0.0f), (float)n);
    float variance = __fdiv_rn(lane_sum(2, row, n, mean), (float)n);
    float root = __fsqrt_rn(__fadd_rn(variance, __int_as_float((int)eps_bits)));
    float scale = __fdiv_rn(1.0f, root);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float v = __fmul_rn(__fmul_rn(__fsub_rn(row[i], mean), scale), w[i]);
        to[i] = b ? __fadd_rn(v, b[i]) : v;
    }""")

KERNELS["rope"] = Kernel(
    "const float *x, i64 x_row_bytes, float *out, i64 out_row_bytes, const int *positions, "
    "const float *cos, const float *sin, i64 n_heads, i64 head_dim, i64 n_rot", 128,
    blocks_by_row, r"""
    const float *row = ROW(x, blockIdx.x, x_row_bytes);
    float *to = ROW_OUT(out, blockIdx.x, out_row_bytes);
    int half = n_rot / 2, dim = head_dim, angles = positions[blockIdx.x] * half;
    for (int i = threadIdx.x; i < n_heads * half; i += blockDim.x) {
        int head = i / half, pair = i % half;
        int at = head * dim + pair * $step, partner = at + ($step == 2 ? 1 : half);
        float a = row[at], b = row[partner], c = cos[angles + pair], s = sin[angles + pair];
        to[at] = __fsub_rn(__fmul_rn(a, c), __fmul_rn(b, s));
        to[partner] = __fadd_rn(__fmul_rn(a, s), __fmul_rn(b, c));
    }
    int rest = dim - 2 * half;          // the dimensions that do not turn
    for (int i = threadIdx.x; i < n_heads * rest; i += blockDim.x) {
        int at = i / rest * dim + 2 * half + i % rest;
        to[at] = row[at];
    }""", lambda pairing: {"step": 2 if pairing == "interleaved" else 1})

KERNELS["rows"] = Kernel(
    "const float *x, i64 x_row_bytes, float *out, i64 out_row_bytes, const int *index, i64 n",
    256, blocks_by_row, r"""
    const float *row = ROW(x, index[blockIdx.x], x_row_bytes);
    float *to = ROW_OUT(out, blockIdx.x, out_row_bytes);
    for (int i = threadIdx.x; i < n; i += blockDim.x) to[i] = row[i];""")

# Backend.argmax: i32 index, f32 value, i32 whether one is not finite, 0.
KERNELS["argmax"] = Kernel(
    "const float *x, i64 x_row_bytes, i64 n, int *out", 256, blocks_by_row, r"""
    __shared__ float values[256];
    __shared__ int places[256], wilds[256];
    const float *row = ROW(x, blockIdx.x, x_row_bytes);
    float best = $lowest;
    int place = 0, wild = 0, t = threadIdx.x;
    for (int i = t; i < n; i += 256) {
        float v = row[i];
        wild |= is_wild(v);
        if (v > best || (v == best && i < place)) { best = v; place = i; }
    }
    values[t] = best; places[t] = place; wilds[t] = wild;
    for (int step = 128; step; step /= 2) {
        __syncthreads();
        if (t < step) {
            float other = values[t + step];
            int there = places[t + step];
            if (other > values[t] || (other == values[t] && there < places[t])) {
                values[t] = other; places[t] = there;
            }
            wilds[t] |= wilds[t + step];
        }
    }
    if (t == 0) {
        int *to = out + 4 * (i64)blockIdx.x;
        to[0] = places[0]; to[1] = __float_as_int(values[0]); to[2] = wilds[0]; to[3] = 0;
    }""", lambda: {"lowest": c_float(LOWEST)})

# Reference.route.  A warp takes a row; what was chosen is struck out of a copy.  An expert is
# always one that there is, and a logit that is not finite makes all weights of its row NaN.
KERNELS["route"] = Kernel(
    "const float *x, i64 x_row_bytes, i64 n, i64 n_used, i64 normalize, int *experts, "
    "float *weights", 32, blocks_by_row, r"""
    __shared__ float left[$max];
    const float *row = ROW(x, blockIdx.x, x_row_bytes);
    int *chosen = experts + blockIdx.x * n_used;
    float *weight = weights + blockIdx.x * n_used;
    int lane = threadIdx.x, wild = 0;
    float top = 0.0f, total = 0.0f, lost = __int_as_float(0xff800000);
    for (int i = lane; i < n; i += 32) {
        left[i] = row[i];
        wild |= is_wild(row[i]);
    }
    for (int step = 16; step; step /= 2) wild |= __shfl_xor_sync(ALL, wild, step);
    __syncwarp(ALL);
    for (int j = 0; j < n_used; j++) {
        float best = lost;
        int place = 0;
        for (int i = lane; i < n; i += 32)
            if (left[i] > best) { best = left[i]; place = i; }
        for (int step = 16; step; step /= 2) {
            float other = __shfl_xor_sync(ALL, best, step);
            int there = __shfl_xor_sync(ALL, place, step);
            if (other > best || (other == best && there < place)) { best = other; place = there; }
        }
        if (j == 0) top = wild ? __int_as_float(0x7fc00000) : best;
        float e = exp_of(__fsub_rn(best, top));
        total = j ? __fadd_rn(total, e) : e;
        if (lane == 0) { chosen[j] = place; weight[j] = e; left[place] = lost; }
        __syncwarp(ALL);
    }
    if (!normalize) total = lane_sum(3, row, n, top);
    if (lane == 0)
        for (int j = 0; j < n_used; j++) weight[j] = __fdiv_rn(weight[j], total);""",
    lambda: {"max": MAX_EXPERTS})

KERNELS["mix"] = Kernel(
    "const float *x, i64 x_row_bytes, float *out, i64 out_row_bytes, const float *weights, "
    "i64 n_used, i64 n", 256, blocks_by_row, r"""
    i64 first = blockIdx.x * n_used;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float sum = __fmul_rn(ROW(x, first, x_row_bytes)[i], weights[first]);
        for (i64 pick = first + 1; pick < first + n_used; pick++)
            sum = __fadd_rn(sum, __fmul_rn(ROW(x, pick, x_row_bytes)[i], weights[pick]));
        ROW_OUT(out, blockIdx.x, out_row_bytes)[i] = sum;
    }""")

# 4.3 The cache.  A vector lies where chapter 5 says, in pages on the card: `tables` holds a row of
# page numbers for each row of the batch, n_pages long.

KV_FUNCTIONS = {                        # type -> (how to load element i, how to store a vector)
    "f32": ("((const float *)p)[i]", """
    for (int i = lane; i < dim; i += 32) ((float *)p)[i] = finite(x[i]);"""),
    "f16": ("half_to_float(((const u16 *)p)[i])", """
    for (int i = lane; i < dim; i += 32) {
        float v = finite(x[i]);
        v = v > $f16_max ? $f16_max : v < -$f16_max ? -$f16_max : v;
        ((u16 *)p)[i] = float_to_half(v);
    }"""),
    "q8_0": ("__fmul_rn(half_to_float(load2(p + (i >> 5) * 34)), "
             "(float)(signed char)p[(i >> 5) * 34 + 2 + (i & 31)])", """
    for (int b = 0; b < dim / 32; b++) {
        float v = finite(x[32 * b + lane]);
        v = v > $q8_max ? $q8_max : v < -$q8_max ? -$q8_max : v;
        int peak = __float_as_int(v) & 0x7fffffff;
        for (int step = 16; step; step /= 2) peak = max(peak, __shfl_xor_sync(ALL, peak, step));
        float scale = __fdiv_rn(__int_as_float(peak), 127.0f);
        float inverse = __fdiv_rn(1.0f, scale);
        v = __fmul_rn(v, inverse <= $f32_max ? inverse : 0.0f);
        float size = floorf(__fadd_rn(fabsf(v), $half_below));
        p[34 * b + 2 + lane] = (u8)(v < 0.0f ? -(int)size : (int)size);
        if (lane == 0) *(u16 *)(p + 34 * b) = float_to_half(scale);
    }"""),
}

KV = r"""
__device__ __forceinline__ float kv_load_$T(const u8 *p, int i) { return $load; }

// Round a vector and store it; by a warp.   Must equal KV_TYPES[$T].write.
__device__ __forceinline__ void kv_save_$T(u8 *p, const float *x, int dim, int lane) {$save
}
"""


def kv_source(kv_type):
    """Return the C functions that read and write a type of cache."""
    load, save = KV_FUNCTIONS[kv_type]
    limits = {"f16_max": F16_MAX, "q8_max": Q8_0_MAX, "f32_max": F32_MAX, "half_below": HALF_BELOW}
    save = string.Template(save).substitute({k: c_float(v) for k, v in limits.items()})
    return string.Template(KV).substitute(T=kv_type, load=load, save=save)


CACHE_PARAMETERS = ("const int *tables, i64 n_pages, const int *positions, u8 *arena, "
                    "i64 page_bytes, i64 layer_off, i64 page_size, i64 n_kv_heads")


def _kv_values(kv_type, head_dim, *rest):
    return {"T": kv_type, "dim": head_dim,
            "vector_bytes": KV_TYPES[kv_type].format.n_bytes(head_dim)}


KERNELS["kv_store"] = Kernel(
    "const float *k, i64 k_row_bytes, const float *v, i64 v_row_bytes, " + CACHE_PARAMETERS, 128,
    blocks_by_row, r"""
    int row = blockIdx.x, lane = threadIdx.x & 31, pos = positions[row];
    int page = tables[row * n_pages + pos / page_size], slot = pos % page_size;
    u8 *base = arena + page * page_bytes + layer_off;
    for (int i = threadIdx.x >> 5; i < 2 * n_kv_heads; i += 4) {
        const float *x = i < n_kv_heads ? ROW(k, row, k_row_bytes) + i * $dim
                                        : ROW(v, row, v_row_bytes) + (i - n_kv_heads) * $dim;
        kv_save_$T(base + ((i64)i * page_size + slot) * $vector_bytes, x, $dim, lane);
    }""", _kv_values)

# Reference.attention behind the store, for one head of one row.  Chunk after chunk of 64
# positions: eight threads compute a score, one for each lane; each thread then owns elements of
# the output.  With `parts` blocks for a head, block z takes every parts-th chunk and leaves its
# (m, l, o) in `partials` for attention_merge; alone, it merges them itself.
KERNELS["attention"] = Kernel(
    "const float *q, i64 q_row_bytes, float *out, i64 out_row_bytes, i64 n_heads, i64 scale_bits, "
    "i64 cap_bits, i64 window, const float *sinks, i64 parts, float *partials, i64 slots, "
    + CACHE_PARAMETERS, 128, lambda f, n: (f["n_heads"], f["n_rows"], f["parts"]), r"""
    __shared__ float query[$dim], p[64];
    __shared__ const u8 *keys[64];
    int head = blockIdx.x, row = blockIdx.y, t = threadIdx.x, lane = t & 7;
    int pos = positions[row], lowest = window ? max(0, pos + 1 - (int)window) : 0;
    int kv_head = head / (int)(n_heads / n_kv_heads), n = 0;
    float scale = __int_as_float((int)scale_bits), cap = __int_as_float((int)cap_bits);
    float m = 0.0f, l = 0.0f, o[($dim + 127) / 128];
    for (int d = t; d < $dim; d += 128) query[d] = ROW(q, row, q_row_bytes)[head * $dim + d];
    for (int chunk = lowest / 64 + blockIdx.z; chunk <= pos / 64; chunk += parts, n++) {
        int first = max(lowest, chunk * 64), end = min(pos + 1, chunk * 64 + 64);
        if (t < 64) {                   // where position chunk * 64 + t has its key
            int at = min(max(chunk * 64 + t, first), end - 1);
            int page = tables[row * n_pages + at / page_size];
            keys[t] = arena + page * page_bytes + layer_off
                    + (kv_head * page_size + at % page_size) * $vector_bytes;
            p[t] = $lost;
        }
        __syncthreads();
        for (int j = t >> 3; j < 64; j += 16) {
            float sum = 0.0f;
            #pragma unroll 4
            for (int d = lane; d < $dim; d += 8)
                sum = __fadd_rn(sum, __fmul_rn(kv_load_$T(keys[j], d), query[d]));
            float score = finite(__fmul_rn(tree_sum(sum), scale));
            if (cap != 0.0f) score = softcap_of(score, cap);
            if (lane == 0 && chunk * 64 + j >= first && chunk * 64 + j < end) p[j] = score;
        }
        __syncthreads();
        float top = $lost;
        for (int j = 0; j < 64; j++) top = p[j] > top ? p[j] : top;
        __syncthreads();
        if (t < 64) p[t] = chunk * 64 + t >= first && chunk * 64 + t < end
                           ? exp_of(__fsub_rn(p[t], top)) : 0.0f;
        __syncthreads();
        float sum = 0.0f;
        for (int j = lane; j < 64; j += 8) sum = __fadd_rn(sum, p[j]);
        sum = tree_sum(sum);
        float a = 1.0f, b = 1.0f, both = top;
        bool merge = n && parts == 1;
        if (merge) {
            both = m > top ? m : top;
            a = exp_of(__fsub_rn(m, both));
            b = exp_of(__fsub_rn(top, both));
        }
        l = merge ? __fadd_rn(__fmul_rn(l, a), __fmul_rn(sum, b)) : sum;
        m = both;
        i64 v_off = n_kv_heads * page_size * $vector_bytes;
        #pragma unroll
        for (int i = 0; i < ($dim + 127) / 128; i++) {
            int d = t + 128 * i;
            if (d < $dim) {
                float mine = 0.0f;
                for (int j = first & 63; j <= ((end - 1) & 63); j++)
                    mine = __fadd_rn(mine, __fmul_rn(kv_load_$T(keys[j] + v_off, d), p[j]));
                o[i] = merge ? __fadd_rn(__fmul_rn(o[i], a), __fmul_rn(mine, b)) : mine;
            }
        }
        if (parts > 1) {
            float *slot = partials + ((row * n_heads + head) * slots + chunk - lowest / 64)
                                     * ($dim + 2);
            if (t == 0) { slot[0] = m; slot[1] = l; }
            for (int i = 0; i < ($dim + 127) / 128; i++)
                if (t + 128 * i < $dim) slot[2 + t + 128 * i] = o[i];
        }
        __syncthreads();
    }
    if (parts == 1) {
        float a = 1.0f;
        if (sinks) {
            float sink = sinks[head], top = m > sink ? m : sink;
            a = exp_of(__fsub_rn(m, top));
            l = __fadd_rn(__fmul_rn(l, a), exp_of(__fsub_rn(sink, top)));
        }
        float *to = ROW_OUT(out, row, out_row_bytes) + head * $dim;
        #pragma unroll
        for (int i = 0; i < ($dim + 127) / 128; i++)
            if (t + 128 * i < $dim)
                to[t + 128 * i] = __fdiv_rn(sinks ? __fmul_rn(o[i], a) : o[i], l);
    }""", lambda *p: dict(_kv_values(*p), lost=c_float(float("-inf"))))

# merge_chunks of what the blocks of a head left, from the lowest chunk up.
KERNELS["attention_merge"] = Kernel(
    "float *out, i64 out_row_bytes, i64 n_heads, i64 window, const float *sinks, "
    "const float *partials, i64 slots, const int *positions", 128,
    lambda f, n: (f["n_heads"], f["n_rows"], 1), r"""
    int head = blockIdx.x, row = blockIdx.y, t = threadIdx.x, pos = positions[row];
    int lowest = window ? max(0, pos + 1 - (int)window) : 0;
    int n = pos / 64 - lowest / 64 + 1;
    const float *slot = partials + (row * n_heads + head) * slots * ($dim + 2);
    float m = slot[0], l = slot[1], o[($dim + 127) / 128];
    #pragma unroll
    for (int i = 0; i < ($dim + 127) / 128; i++)
        if (t + 128 * i < $dim) o[i] = slot[2 + t + 128 * i];
    for (int j = 1; j < n; j++) {
        slot += $dim + 2;
        float both = m > slot[0] ? m : slot[0];
        float a = exp_of(__fsub_rn(m, both)), b = exp_of(__fsub_rn(slot[0], both));
        l = __fadd_rn(__fmul_rn(l, a), __fmul_rn(slot[1], b));
        m = both;
        #pragma unroll
        for (int i = 0; i < ($dim + 127) / 128; i++)
            if (t + 128 * i < $dim)
                o[i] = __fadd_rn(__fmul_rn(o[i], a), __fmul_rn(slot[2 + t + 128 * i], b));
    }
    float a = 1.0f;
    if (sinks) {
        float sink = sinks[head], top = m > sink ? m : sink;
        a = exp_of(__fsub_rn(m, top));
        l = __fadd_rn(__fmul_rn(l, a), exp_of(__fsub_rn(sink, top)));
    }
    float *to = ROW_OUT(out, row, out_row_bytes) + head * $dim;
    #pragma unroll
    for (int i = 0; i < ($dim + 127) / 128; i++)
        if (t + 128 * i < $dim)
            to[t + 128 * i] = __fdiv_rn(sinks ? __fmul_rn(o[i], a) : o[i], l);""",
    lambda head_dim: {"dim": head_dim})


def symbol_of(name, parameters):
    """Return the name of a kernel made for these parameters."""
    words = [getattr(p, "name", p) for p in parameters]
    return "_".join([name, *map(str, words)])


def parameter_names(kernel):
    return [p.split()[-1].lstrip("*") for p in kernel.parameters.split(",")]


def source_of(keys):
    """Return the CUDA C of some kernels and of what they call.   keys: (name, parameters), .."""
    formats = {p.name: p for _, parameters in keys for p in parameters
               if isinstance(p, kshipra.Format)}
    kv_types = sorted({p for name, parameters in keys for p in parameters
                       if isinstance(p, str) and p in KV_TYPES})
    parts = [preamble(), *[format_source(formats[name]) for name in sorted(formats)],
             *[kv_source(kv_type) for kv_type in kv_types]]
    for name, parameters in keys:
        kernel = KERNELS[name]
        text = string.Template(kernel.text).substitute(kernel.values(*parameters))
        parts.append(f'extern "C" __global__ void __launch_bounds__({kernel.threads})\n'
                     f"{symbol_of(name, parameters)}({kernel.parameters}) {{"
                     f"\n{text.lstrip(chr(10))}\n}}\n")
    return "\n".join(parts)


# ---------------------------------------------------------------------------------------
# 5. The recording as a graph
#
# kshipra's Recorder writes a forward pass down as lines: a kernel and where its operands lie.
# For the processor the lines become a table that threads walk; here each becomes a launch, and
# all the launches of a program are captured, once, as a CUDA graph, together with the copy of the
# inputs to the card and the copy of the logits back.  A token then costs one launch of the graph.
#
#   inputs of a step, one buffer:  tokens (R) | positions (R) | wanted (R) | tables (R, n_pages)
#
# Launches of a stream follow one another, so no barrier has to be decided on.

class Launch(NamedTuple):
    """A recorded launch: the key of its kernel, its blocks, and its arguments, an array('q')."""
    key: tuple
    blocks: tuple
    arguments: array


class CudaRecording(Recorder):
    """One recording for the card.

    weights: DeviceWeights   n_positions: of the tables of angles   n_pages: of a row's table
    parts: blocks of threads that share the attention of a head
    """

    def __init__(self, program, weights, n_positions, n_pages, parts):
        super().__init__(program)
        self.weights, self.n_positions = weights, n_positions
        self.n_pages, self.parts = n_pages, parts

    def line(self, n_chunks, reads, writes, name, *parameters, by_row=False, example=None,
             **fields):
        if name == "embed" and parameters[0].sub_len is None:
            name = "embed_float"
        kernel = KERNELS.get(name)
        if kernel is None:
            raise KshipraError(f"device cuda has no kernel for {name!r} yet; use device native")
        if n_chunks:
            arguments = array("q", [fields[field] for field in parameter_names(kernel)])
            self.program.lines.append(Launch((name, parameters), kernel.blocks(fields, n_chunks),
                                             arguments))
            self.program.calls.append(Call(name, parameters, fields, n_chunks, example))

    def vector(self, values):
        return self.weights.vector(values)

    def matrix(self, w):
        return self.weights.matrix(w)

    def angles(self, table):
        return self.weights.angles(table, self.n_positions)

    def matmul(self, w, x, route=None):
        x = self.done(x)
        n_rows = x.n_rows if route is None else route.experts.n_rows * route.n_used
        address, format = self.matrix(w) if route is None else self.weights.experts(w)
        n_out, n_in = w.shape if route is None else w[0].shape
        out = self.buffer(n_rows, n_out)
        fields = dict(w=address, y=out.address, n_out=n_out, n_rows=n_rows,
                      y_stride=out.row_bytes)
        if route is not None:
            fields.update(experts=route.experts.address, per_row=n_rows // x.n_rows)
        name, parameters = "matvec" if route is None else "pick", (format, n_in)
        if format.sub_len is None:
            name += "_float"
        else:
            x = self.quantized(x, 1)
            if route is None:
                rows = max(r for r in ROWS_AT_ONCE if r <= max(n_rows, 1))
                fields["rows"], parameters = rows, (format, n_in, rows)
        self.line(n_rows, [x], [out], name, *parameters, x=x.address, **fields)
        return out

    def attention(self, q, k, v, batch, layer, spec):
        pool, out = batch.cache, self.buffer(q.n_rows, q.n)
        arena = pool.arena
        common = dict(tables=batch.tables, n_pages=self.n_pages, arena=arena.address,
                      positions=batch.positions.address, page_bytes=arena.card_bytes,
                      layer_off=pool.layer_offs[layer] - arena.split, page_size=pool.page_size,
                      n_kv_heads=spec.n_kv_heads)
        self.line(q.n_rows, [k, v], [], "kv_store", pool.kv_type, spec.head_dim,
                  **kshipra.located(k=k, v=v), **common)
        slots, partials = 0, None
        if self.parts > 1:
            slots = self.n_positions // CHUNK + 2
            partials = Buffer(self.program, q.n_rows, slots, 4 * q.n_rows * spec.n_heads * slots
                              * (spec.head_dim + 2))
        shared = dict(kshipra.located(out=out), n_heads=spec.n_heads, window=spec.window,
                      n_rows=q.n_rows, slots=slots, partials=partials.address if partials else 0,
                      sinks=0 if spec.sinks is None else self.vector(spec.sinks))
        self.line(q.n_rows, [q], [out], "attention", pool.kv_type, spec.head_dim,
                  scale_bits=f32_bits(spec.scale), cap_bits=f32_bits(spec.cap), parts=self.parts,
                  **kshipra.located(q=q), **shared, **common)
        if partials:
            self.line(q.n_rows, [partials], [out], "attention_merge", spec.head_dim,
                      positions=batch.positions.address, **shared)
        return out


class Graph:
    """A program's launches as one thing to launch.

    inputs, outputs: (address, bytes, host address) of what is copied before and after them
    """

    def __init__(self, device, program, functions, inputs, outputs):
        driver, stream = device.driver, device.stream
        graph, executable, self.device = c_void_p(), c_void_p(), device
        driver.cuStreamBeginCapture_v2(stream, CAPTURE_THREAD)
        try:
            try:
                for address, n_bytes, host in inputs:
                    driver.cuMemcpyHtoDAsync_v2(address, host, n_bytes, stream)
                for line in program.lines:
                    launch(device, functions, line)
                for address, n_bytes, host in outputs:
                    driver.cuMemcpyDtoHAsync_v2(host, address, n_bytes, stream)
            finally:
                driver.cuStreamEndCapture(stream, byref(graph))
            driver.cuGraphInstantiateWithFlags(byref(executable), graph, 0)
            self.executable = executable.value
            device.graphs.add(self.executable)
        finally:
            if graph:
                driver.cuGraphDestroy(graph)

    def launch(self):
        self.device.driver.cuGraphLaunch(self.executable, self.device.stream)

    def close(self):
        self.device.drop_graph(self.executable)


def launch(device, functions, line):
    """Launch a recorded line."""
    kernel, base = KERNELS[line.key[0]], line.arguments.buffer_info()[0]
    pointers = (c_void_p * len(line.arguments))(*[base + 8 * i
                                                  for i in range(len(line.arguments))])
    device.driver.cuLaunchKernel(functions[line.key], *line.blocks, kernel.threads, 1, 1, 0,
                                 device.stream, pointers, None)


class Inputs:
    """Where programs find the rows of a step, on the card, and where the host writes them.

    n_rows, n_pages: the room there is   staging: pinned memory, copied to `address`
    """

    def __init__(self, device, n_rows, n_pages):
        self.device, self.n_rows, self.n_pages = device, n_rows, n_pages
        self.n_bytes = 4 * n_rows * (3 + n_pages)
        self.address, self.staging = device.alloc(self.n_bytes), device.alloc_pinned(self.n_bytes)

    def recorded(self, batch):
        """Return the Recorded that stands for a batch of as many rows as this one."""
        at, step, n_rows = self.address, 4 * self.n_rows, len(batch.tokens)
        return kshipra.Recorded(Index(at, n_rows), Index(at + step, n_rows),
                                Index(at + 2 * step, len(batch.wanted)), at + 3 * step,
                                batch.cache)

    def fill(self, batch):
        """Write what a batch holds to where the next launch copies it from."""
        for i, values in enumerate((batch.tokens, batch.positions, batch.wanted)):
            self._write(4 * i * self.n_rows, array("i", values))
        for row, seq in enumerate(batch.sequences):
            self._write(4 * (3 * self.n_rows + row * self.n_pages), seq.table[:self.n_pages])

    def copy(self):
        """Return what a graph copies first: (address, bytes, host address)."""
        return self.address, self.n_bytes, self.staging

    def _write(self, off, values):
        ctypes.memmove(self.staging + off, values.buffer_info()[0], 4 * len(values))

    def close(self):
        self.device.free(self.address)
        self.device.free_pinned(self.staging)


MERGED_ROWS, PARTS = 4, 16              # up to so many rows divide attention, in so many parts


# A forward pass may be divided: the processor computes the first layers, the card the others.
# What crosses over is the residual stream, once.  The pass is recorded twice.  The first time, for
# the processor, it is broken off where a weight of the card's first layer comes up, and what that
# would have met is the result.  The second time what comes before is passed over.

class Crossing(Exception):
    """The pass has come to the card's first weight; argument: the Buffer that meets it."""


class HostHalf:
    """The operation surface of `recording` up to a weight of `marks`, a set of ids."""

    def __init__(self, recording, marks):
        self.recording, self.marks = recording, marks

    def __getattr__(self, name):
        operation = getattr(self.recording, name)

        def call(*args):
            if any(id(arg) in self.marks for arg in args):
                raise Crossing(next(arg for arg in args if isinstance(arg, Buffer)))
            return operation(*args)
        return call


class Passed:
    """What stands for a result of the processor's half."""


class CardHalf:
    """The operation surface of `recording` from a weight of `marks` on; before it, nothing.

    x: the Buffer for what crosses over
    """

    def __init__(self, recording, marks, x):
        self.recording, self.marks, self.x, self.crossed = recording, marks, x, None

    def __getattr__(self, name):
        operation = getattr(self.recording, name)

        def call(*args):
            if self.crossed is None:
                if not any(id(arg) in self.marks for arg in args):
                    return Passed()
                self.crossed = next(arg for arg in args if isinstance(arg, Passed))
            return operation(*[self.x if arg is self.crossed else arg for arg in args])
        return call


class Cuda(Backend):
    """The backend of the card: records programs, makes graphs of them, launches those.

    device: Device   weights: DeviceWeights   programs: by number of rows
    arena: (address, bytes) of the activations
    host: the Backend that searches rows of logits, and computes the first n_host layers
    """

    name, n_threads, prefill_rows = "cuda", 1, 192

    def __init__(self, host, gpu_layers=None):
        """gpu_layers: how many of the last layers the card computes; None for all."""
        self.host, self.programs, self.found = host, {}, {}
        self.gpu_layers, self.n_host = gpu_layers, 0
        if gpu_layers is not None:
            kshipra.check_whole("gpu_layers", gpu_layers, 0)
        self.device = Device()
        self.isa = f"sm_{self.device.compute}"
        self.weights, self.arena, self.inputs = DeviceWeights(self.device), (0, 0), None
        self.pid = os.getpid()

    def close(self):
        if os.getpid() == self.pid:     # a forked child has no part in the card
            self.forget_programs()
            self.device.close()
        self.host.close()

    def new_pool(self, layers, *args):
        if self.gpu_layers is not None:
            self.n_host = max(0, len(layers) - self.gpu_layers)
        if self.n_host and self.host.name != "native":
            raise KshipraError(f"gpu_layers is {self.gpu_layers}, but machine code for the other "
                               f"{self.n_host} layers cannot be used here; leave gpu_layers out")
        return DevicePool(self.device, self.n_host, layers, *args)

    def after_fork(self):
        self.device.context = self.device.stream = None
        self.device.failed = "this process was forked from the one that it belongs to"
        self.host.after_fork()

    def largest(self, row, k):
        return self.host.largest(row, k)

    def exp_sum(self, row, top):
        return self.host.exp_sum(row, top)

    def forget_programs(self):
        """Give up the graphs, as a place that they name will serve no more."""
        with contextlib.suppress(DriverError):
            for program in self.programs.values():
                self.close_program(program)
        self.programs.clear()

    def close_program(self, program):
        program.graph.close()
        self.device.free_pinned(program.host_address)

    def run(self, forward, model, batch):
        """Return the logits of the wanted rows: record the forward pass, or use the record."""
        if batch.layers is not None or batch.left is not None:
            raise KshipraError("device cuda runs all layers or none, so no draft of some of the "
                               "model's own layers and no early exit; use device native for these")
        with self.device.at_work():
            n_wanted = len(batch.wanted)
            batch = batch.padded(kshipra.rows_bucket(len(batch.tokens)),
                                 kshipra.rows_bucket(n_wanted))
            parts = self.parts_of(batch)
            divided = bool(self.n_host) and self.host.is_divided(batch)
            key = len(batch.tokens), len(batch.wanted), parts, divided, id(batch.cache)
            program = self.programs.get(key)
            if program is None:
                program = self.record(forward, model, batch, parts)
                if len(self.programs) == KEPT_PROGRAMS:
                    self.close_program(self.programs.pop(next(iter(self.programs))))
                self.programs[key] = program
            return self.run_program(program, batch)[:n_wanted]

    def parts_of(self, batch):
        """Return in how many parts the attention of each head is divided, by position."""
        few = len(batch.tokens) <= MERGED_ROWS and max(batch.positions) >= LONG_POSITIONS
        return PARTS if few else 1

    def record(self, forward, model, batch, parts):
        """Return the Program of a forward pass over so many rows, with its graph."""
        n_positions = model.ctx_size
        n_pages = max(1, -(-n_positions // batch.cache.page_size))
        n_rows = len(batch.tokens)
        if self.inputs is None or n_rows > self.inputs.n_rows or n_pages > self.inputs.n_pages:
            self.forget_programs()
            if self.inputs is not None:
                self.inputs.close()
            self.inputs = Inputs(self.device, max(n_rows, 16), n_pages)
        half = self.record_host(forward, model, batch) if self.n_host else None
        program, recording, logits, best, x = self.write_down(forward, model, batch, parts, half)
        program.half, inputs = half, [self.inputs.copy()]
        self.compile(program)
        outputs, at = [], 0
        sizes = [(b.address, 16 * b.n_rows) for b in recording.dropped + [best]]
        sizes.append((logits.address, 4 * logits.n_rows * logits.n))
        if x is not None:
            sizes.append((x.address, x.n_bytes))
        program.host_address = self.device.alloc_pinned(sum(n_bytes for _, n_bytes in sizes))
        for address, n_bytes in sizes:
            outputs.append((address, n_bytes, program.host_address + at))
            at += n_bytes
        if x is not None:
            inputs.append(outputs.pop())
            program.x_at = inputs[-1][2]
        *program.looked_at, (_, _, program.logits_at) = outputs
        program.n_logits, program.n_rows, program.pool = logits.n, logits.n_rows, batch.cache
        program.graph = Graph(self.device, program, self.found, inputs, outputs)
        return program

    def marks(self, model):
        """Return the ids of the weights that the card meets first."""
        layers = model.weights.layers
        if self.n_host < len(layers):
            return {id(value) for value in vars(layers[self.n_host]).values()
                    if isinstance(value, (kshipra.Tensor, array, list))}
        return {id(model.weights.out_norm)}

    def host_batch(self, batch):
        return kshipra.Batch(batch.rows, batch.wanted, batch.cache.host)

    def record_host(self, forward, model, batch):
        """Return the processor's Program of the first layers; its result is what crosses over."""
        def first_half(model, recording, batch):
            try:
                forward(model, HostHalf(recording, self.marks(model)), batch)
            except Crossing as crossing:
                return crossing.args[0]
            raise AssertionError("every forward pass comes to the card's first weight")
        return self.host.record(first_half, model, self.host_batch(batch),
                                self.host.is_divided(batch))

    def write_down(self, forward, model, batch, parts, half):
        """Return (Program, its recording, logits, best, what crosses over or None); in a larger
        arena if need be."""
        while True:
            arena = kshipra.types.SimpleNamespace(address=self.arena[0], n_bytes=self.arena[1])
            program = Program(arena)
            recording = CudaRecording(program, self.weights, model.ctx_size, self.inputs.n_pages,
                                      parts)
            x, ops = None, recording
            if half:
                x = recording.buffer(*half.output[2:])
                ops = CardHalf(recording, self.marks(model), x)
            logits = forward(model, ops, self.inputs.recorded(batch))
            best = recording.argmax(logits)
            if program.peak_bytes <= arena.n_bytes:
                return program, recording, logits, best, x
            self.forget_programs()
            self.device.free(self.arena[0])
            self.arena = 0, 0
            self.arena = self.device.alloc(program.peak_bytes), program.peak_bytes

    def compile(self, program):
        """Compile the kernels of a program that are new."""
        keys = [key for key in dict.fromkeys(line.key for line in program.lines)
                if key not in self.found]
        if keys:
            functions = self.device.functions(source_of(keys), [symbol_of(*key) for key in keys])
            self.found.update((key, functions[symbol_of(*key)]) for key in keys)

    def run_program(self, program, batch):
        """Fill in a batch, launch the graph, and return a copy of its logits, a row each."""
        if program.half:
            rows = self.host.run_program(self.host.team, program.half, self.host_batch(batch))
            data = b"".join(map(bytes, rows))
            ctypes.memmove(program.x_at, data, len(data))
        self.inputs.fill(batch)
        self.weights.fill(max(batch.positions))
        try:
            program.graph.launch()
        finally:
            self.device.synchronize()
        for _, n_bytes, host in program.looked_at:
            if any(array("i", ctypes.string_at(host, n_bytes))[2::4]):
                raise KshipraError(NOT_FINITE)
        best, out = array("i", ctypes.string_at(program.looked_at[-1][2], 16 * program.n_rows)), []
        for r in range(program.n_rows):
            row, n_bytes = Logits("f"), 4 * program.n_logits
            row.frombytes(ctypes.string_at(program.logits_at + r * n_bytes, n_bytes))
            row.best = best[4 * r]
            out.append(row)
        return out
