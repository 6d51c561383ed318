//! The CUDA driver, loaded at run time. Everything that it gives is given back exactly once, by a type that owns it.
//!
//! Starting a driver can hang or end the process where it is half installed: call this from a process that may.

use std::cell::RefCell;
use std::ffi::{CStr, OsString, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::fs::File;
use std::rc::Rc;

use libloading::Library;
use memmap2::{Mmap, MmapOptions};

use super::library::{LibraryError, functions, load};

type Pointer = u64;
type Handle = *mut c_void;

/// Read-only memory can be registered (CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED).
const ATTRIBUTE_READ_ONLY_REGISTER: c_int = 113;
/// Any host memory can (CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED).
const ATTRIBUTE_REGISTER: c_int = 99;
/// CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the one flag that there is.
const IPC_FLAGS: c_uint = 1;
/// CU_STREAM_NON_BLOCKING.
const STREAM_FLAGS: c_uint = 1;

/// CU_MEMHOSTREGISTER_PORTABLE and CU_MEMHOSTREGISTER_READ_ONLY.
const REGISTER_FLAGS: c_uint = 0x01 | 0x08;

/// By which another process opens device memory (CUipcMemHandle).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IpcHandle(pub [u8; 64]);

functions! {
    /// By the names with the versions that CUDA 11.1 and later have.
    Functions {
        cuInit(c_uint) -> c_int;
        cuDriverGetVersion(*mut c_int) -> c_int;
        cuGetErrorName(c_int, *mut *const c_char) -> c_int;
        cuDeviceGetCount(*mut c_int) -> c_int;
        cuDeviceGet(*mut c_int, c_int) -> c_int;
        cuDeviceGetName(*mut c_char, c_int, c_int) -> c_int;
        cuDeviceGetPCIBusId(*mut c_char, c_int, c_int) -> c_int;
        cuDeviceTotalMem_v2(*mut usize, c_int) -> c_int;
        cuDeviceGetAttribute(*mut c_int, c_int, c_int) -> c_int;
        cuDevicePrimaryCtxRetain(*mut Handle, c_int) -> c_int;
        cuDevicePrimaryCtxRelease_v2(c_int) -> c_int;
        cuCtxPushCurrent_v2(Handle) -> c_int;
        cuCtxPopCurrent_v2(*mut Handle) -> c_int;
        cuMemAlloc_v2(*mut Pointer, usize) -> c_int;
        cuMemFree_v2(Pointer) -> c_int;
        cuMemcpyDtoDAsync_v2(Pointer, Pointer, usize, Handle) -> c_int;
        cuMemcpyDtoH_v2(*mut c_void, Pointer, usize) -> c_int;
        cuStreamCreate(*mut Handle, c_uint) -> c_int;
        cuStreamDestroy_v2(Handle) -> c_int;
        cuStreamSynchronize(Handle) -> c_int;
        cuIpcGetMemHandle(*mut IpcHandle, Pointer) -> c_int;
        cuIpcOpenMemHandle_v2(*mut Pointer, IpcHandle, c_uint) -> c_int;
        cuIpcCloseMemHandle(Pointer) -> c_int;
    }
}

functions! {
    /// What clients upload resident files with.
    RegisterFunctions {
        cuMemHostRegister_v2(*mut c_void, usize, c_uint) -> c_int;
        cuMemHostUnregister(*mut c_void) -> c_int;
    }
}

/// A call that did not succeed. The name is the driver's own, where it has one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{function} failed with {} ({code})", name.as_deref().unwrap_or("an error"))]
pub struct CudaError {
    pub function: &'static str,
    pub code: i32,
    pub name: Option<String>,
}

/// The driver's library.
pub struct Cuda {
    functions: Functions,
    registers: Option<RegisterFunctions>,
    /// Holds the code of the functions in memory.
    _library: Library,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cuda")
    }
}

/// A device, as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    pub name: String,
    pub bus_id: String,
    pub memory_bytes: u64,
    pub registers: bool,
    pub registers_read_only: bool,
}

/// Calls a function of the table and turns its code into an error.
macro_rules! call {
    ($cuda:expr, $function:ident($($argument:expr),*)) => {{
        let cuda: &Cuda = $cuda;
        // SAFETY: the arguments are numbers, handles that the driver gave and that their owners hold, and pointers to
        // local variables of the type that the function fills; ranges of memory were checked by the caller of this.
        let code = unsafe { (cuda.functions.$function)($($argument),*) };
        cuda.checked(stringify!($function), code)
    }};
}

impl Cuda {
    /// Loads the library and looks up every function. Nothing is called.
    pub fn load(name: OsString) -> Result<Rc<Self>, LibraryError> {
        let (library, name) = load(name)?;
        let functions = Functions::find(&library, &name)?;
        let registers = RegisterFunctions::find(&library, &name).ok();
        Ok(Rc::new(Self { functions, registers, _library: library }))
    }

    fn checked(&self, function: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let mut name: *const c_char = std::ptr::null();
        // SAFETY: the driver writes a pointer to a constant string of its own, or leaves it as it is.
        let named = unsafe { (self.functions.cuGetErrorName)(code, &mut name) } == 0 && !name.is_null();
        // SAFETY: checked not to be null; a constant of the library, which `self` holds.
        let name = named.then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
        Err(CudaError { function, code, name })
    }

    /// 12080 for CUDA 12.8. May be asked before [`Self::start`].
    pub fn version(&self) -> Result<i32, CudaError> {
        let mut version = 0;
        call!(self, cuDriverGetVersion(&mut version)).map(|()| version)
    }

    /// Starts the driver, which is what may take long.
    pub fn start(&self) -> Result<(), CudaError> {
        call!(self, cuInit(0))
    }

    /// How many devices there are. They are numbered from 0.
    pub fn count(&self) -> Result<i32, CudaError> {
        let mut count = 0;
        call!(self, cuDeviceGetCount(&mut count)).map(|()| count)
    }

    pub fn devices(&self) -> Result<Vec<DeviceInfo>, CudaError> {
        (0..self.count()?).map(|index| self.device(index)).collect()
    }

    fn device(&self, index: c_int) -> Result<DeviceInfo, CudaError> {
        let (mut device, mut memory) = (0, 0usize);
        call!(self, cuDeviceGet(&mut device, index))?;
        call!(self, cuDeviceTotalMem_v2(&mut memory, device))?;
        let (mut name, mut bus_id) = ([0u8; 256], [0u8; 32]);
        call!(self, cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int - 1, device))?;
        call!(self, cuDeviceGetPCIBusId(bus_id.as_mut_ptr().cast(), bus_id.len() as c_int - 1, device))?;
        let has = |attribute| {
            let mut value = 0;
            call!(self, cuDeviceGetAttribute(&mut value, attribute, device)).map(|()| value != 0)
        };
        Ok(DeviceInfo {
            name: text(&name),
            bus_id: text(&bus_id),
            memory_bytes: memory as u64,
            registers: has(ATTRIBUTE_REGISTER)?,
            registers_read_only: has(ATTRIBUTE_READ_ONLY_REGISTER)?,
        })
    }
}

/// What stands before the first zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The primary context of a device, current on the thread that made it. It stays there: `Rc` keeps it from others.
#[derive(Debug)]
pub struct Context {
    cuda: Rc<Cuda>,
    device: c_int,
}

impl Context {
    /// Needs [`Cuda::start`] first.
    pub fn of(cuda: &Rc<Cuda>, index: u32) -> Result<Rc<Self>, CudaError> {
        let (mut device, mut handle) = (0, std::ptr::null_mut());
        call!(cuda, cuDeviceGet(&mut device, index as c_int))?;
        call!(cuda, cuDevicePrimaryCtxRetain(&mut handle, device))?;
        let context = Self { cuda: Rc::clone(cuda), device };
        call!(cuda, cuCtxPushCurrent_v2(handle))?;
        Ok(Rc::new(context))
    }
}

impl Context {
    /// Tries out how many shared mappings of `file` that may only be read can be registered at once, as clients do with
    /// pieces of resident files. `file` is not empty. Gives the number, at most `most`, and what is said to one more.
    /// Nothing stays registered.
    pub fn try_to_register(&self, file: &File, most: usize) -> (usize, Option<CudaError>) {
        let missing = CudaError { function: "cuMemHostRegister", code: -1, name: Some("not in the library".into()) };
        let Some(registers) = &self.cuda.registers else { return (0, Some(missing)) };
        let mut registered = Vec::new();
        let mut refusal = None;
        while registered.len() < most && refusal.is_none() {
            match self.register(registers, file) {
                Ok(map) => registered.push(map),
                Err(error) => refusal = Some(error),
            }
        }
        let mut count = registered.len();
        for map in registered {
            // SAFETY: registered above, by this address.
            let code = unsafe { (registers.cuMemHostUnregister)(map.as_ptr().cast_mut().cast()) };
            if let Err(error) = self.cuda.checked("cuMemHostUnregister", code) {
                // Its pages stay pinned, so that its addresses must stay as well.
                std::mem::forget(map);
                (count, refusal) = (0, Some(error));
            }
        }
        (count, refusal)
    }

    fn register(&self, registers: &RegisterFunctions, file: &File) -> Result<Mmap, CudaError> {
        // SAFETY: nothing reads the mapping as Rust memory.
        let map = unsafe { MmapOptions::new().map(file) }.map_err(|error| CudaError {
            function: "cuMemHostRegister",
            code: -1,
            name: Some(format!("no mapping: {error}")),
        })?;
        // SAFETY: the range is the mapping, which outlives the registration: that is taken back before it goes.
        let code =
            unsafe { (registers.cuMemHostRegister_v2)(map.as_ptr().cast_mut().cast(), map.len(), REGISTER_FLAGS) };
        self.cuda.checked("cuMemHostRegister", code).map(|()| map)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let _ = call!(&self.cuda, cuCtxPopCurrent_v2(&mut std::ptr::null_mut()));
        let _ = call!(&self.cuda, cuDevicePrimaryCtxRelease_v2(self.device));
    }
}

/// Device memory: this process's own, or another's that was opened by its handle.
#[derive(Debug)]
pub struct Memory {
    context: Rc<Context>,
    pointer: Pointer,
    len: usize,
    is_own: bool,
}

impl Memory {
    /// `len` bytes, which must not be zero.
    pub fn new(context: &Rc<Context>, len: usize) -> Result<Rc<Self>, CudaError> {
        let mut pointer = 0;
        call!(&context.cuda, cuMemAlloc_v2(&mut pointer, len))?;
        Ok(Rc::new(Self { context: Rc::clone(context), pointer, len, is_own: true }))
    }

    /// Another process's memory of `len` bytes, which it promises to keep until it was told that this is done.
    pub fn open(context: &Rc<Context>, handle: IpcHandle, len: usize) -> Result<Rc<Self>, CudaError> {
        let mut pointer = 0;
        call!(&context.cuda, cuIpcOpenMemHandle_v2(&mut pointer, handle, IPC_FLAGS))?;
        Ok(Rc::new(Self { context: Rc::clone(context), pointer, len, is_own: false }))
    }

    /// What others open it by.
    pub fn handle(&self) -> Result<IpcHandle, CudaError> {
        let mut handle = IpcHandle([0; 64]);
        call!(&self.context.cuda, cuIpcGetMemHandle(&mut handle, self.pointer)).map(|()| handle)
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: there is no memory of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `target.len()` bytes from `start` back to the host.
    ///
    /// # Panics
    /// Where they do not lie in this memory.
    pub fn read(&self, start: usize, target: &mut [u8]) -> Result<(), CudaError> {
        let from = self.at(start, target.len());
        call!(&self.context.cuda, cuMemcpyDtoH_v2(target.as_mut_ptr().cast(), from, target.len()))
    }

    pub(super) fn pointer(&self) -> *mut c_void {
        self.pointer as *mut c_void
    }

    fn at(&self, start: usize, len: usize) -> Pointer {
        let fits = start.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(fits, "{start} + {len} is outside of {} bytes of device memory", self.len);
        self.pointer + start as Pointer
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = match self.is_own {
            true => call!(&self.context.cuda, cuMemFree_v2(self.pointer)),
            false => call!(&self.context.cuda, cuIpcCloseMemHandle(self.pointer)),
        };
    }
}

/// Copies between device memory, carried out in order. It holds the memory of those that it has not waited for.
#[derive(Debug)]
pub struct Stream {
    context: Rc<Context>,
    handle: Handle,
    used: RefCell<Vec<Rc<Memory>>>,
}

impl Stream {
    pub fn new(context: &Rc<Context>) -> Result<Self, CudaError> {
        let mut handle = std::ptr::null_mut();
        call!(&context.cuda, cuStreamCreate(&mut handle, STREAM_FLAGS))?;
        Ok(Self { context: Rc::clone(context), handle, used: RefCell::new(Vec::new()) })
    }

    /// Starts a copy of `len` bytes.
    ///
    /// # Panics
    /// Where they do not lie in the memory that they are copied from or to.
    pub fn copy(&self, from: (&Rc<Memory>, usize), to: (&Rc<Memory>, usize), len: usize) -> Result<(), CudaError> {
        let (source, target) = (from.0.at(from.1, len), to.0.at(to.1, len));
        self.used.borrow_mut().extend([Rc::clone(from.0), Rc::clone(to.0)]);
        call!(&self.context.cuda, cuMemcpyDtoDAsync_v2(target, source, len, self.handle))
    }

    /// Waits for every copy so far.
    pub fn wait(&self) -> Result<(), CudaError> {
        call!(&self.context.cuda, cuStreamSynchronize(self.handle))?;
        self.used.borrow_mut().clear();
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.wait().is_err() {
            // Something may still be written: the memory stays as it is until the process ends.
            std::mem::forget(self.used.take());
        }
        let _ = call!(&self.context.cuda, cuStreamDestroy_v2(self.handle));
    }
}
