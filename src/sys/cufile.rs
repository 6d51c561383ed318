//! cuFile (GPUDirect Storage), loaded at run time. Its driver is opened by processes that exist for nothing else: where
//! its device is missing, opening it was seen to damage descriptors of the process.

use std::cell::RefCell;
use std::ffi::{OsString, c_int, c_uint, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::rc::Rc;

use libloading::Library;
use nix::libc::{off_t, ssize_t, timespec};

use super::cuda::Memory;
use super::library::{LibraryError, functions, load};

/// CU_FILE_HANDLE_TYPE_OPAQUE_FD.
const DESCRIPTOR: c_int = 1;
/// CUFILE_BATCH, CUFILE_READ.
const BATCH_MODE: c_int = 1;
const READ: c_int = 0;
/// CUFILE_COMPLETE of CUfileStatus_t; everything else that comes back is a failure.
const COMPLETE: c_int = 0x10;
/// Errors of cuFile itself begin here; below are those of the system.
const OWN_ERRORS: i64 = 5000;

#[repr(C)]
#[derive(Clone, Copy)]
struct Status {
    error: c_int,
    cuda: c_int,
}

/// CUfileDescr_t, with a descriptor in its union.
#[repr(C)]
struct Description {
    kind: c_int,
    handle: *mut c_void,
    operations: *const c_void,
}

/// CUfileDrvProps_t since CUDA 11.6.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawProperties {
    major: c_uint,
    minor: c_uint,
    poll_threshold: usize,
    max_direct_io_kib: usize,
    status_flags: c_uint,
    control_flags: c_uint,
    feature_flags: c_uint,
    max_device_cache_kib: c_uint,
    per_buffer_cache_kib: c_uint,
    max_pinned_kib: c_uint,
    max_batch: c_uint,
    max_batch_timeout_ms: c_uint,
    /// Room for what newer versions add.
    spare: [u64; 16],
}

/// CUfileIOParams_t.
#[repr(C)]
struct Parameters {
    mode: c_int,
    base: *mut c_void,
    file_offset: off_t,
    base_offset: off_t,
    len: usize,
    file: *mut c_void,
    operation: c_int,
    cookie: *mut c_void,
}

/// CUfileIOEvents_t.
#[repr(C)]
#[derive(Clone, Copy)]
struct Event {
    cookie: *mut c_void,
    status: c_int,
    result: usize,
}

functions! {
    Functions {
        cuFileDriverOpen() -> Status;
        cuFileDriverClose() -> Status;
        cuFileDriverGetProperties(*mut RawProperties) -> Status;
        cuFileHandleRegister(*mut *mut c_void, *mut Description) -> Status;
        cuFileHandleDeregister(*mut c_void);
        cuFileBufRegister(*const c_void, usize, c_int) -> Status;
        cuFileBufDeregister(*const c_void) -> Status;
        cuFileRead(*mut c_void, *mut c_void, usize, off_t, off_t) -> ssize_t;
    }
}
functions! {
    /// Since CUDA 11.6; without them one read follows the other.
    BatchFunctions {
        cuFileBatchIOSetUp(*mut *mut c_void, c_uint) -> Status;
        cuFileBatchIOSubmit(*mut c_void, c_uint, *mut Parameters, c_uint) -> Status;
        cuFileBatchIOGetStatus(*mut c_void, c_uint, *mut c_uint, *mut Event, *mut timespec) -> Status;
        cuFileBatchIODestroy(*mut c_void);
    }
}
functions! {
    /// Since CUDA 12.
    VersionFunctions {
        cuFileGetVersion(*mut c_int) -> Status;
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CuFileError {
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// By its number in cufile.h.
    #[error("{function} failed with {code}{}", meaning(*code))]
    Own { function: &'static str, code: i32 },
    #[error("{function} failed: {error}")]
    System { function: &'static str, error: std::io::Error },
    #[error("a read of a batch failed with {0}")]
    Read(i64),
}

/// What a person can do something about.
fn meaning(code: i32) -> &'static str {
    match code {
        5001 => " (the driver is not open)",
        5004 | 5005 => " (the module nvidia-fs has another version)",
        5007 => " (platform not supported)",
        5008 => " (this filesystem is not supported)",
        5010 | 5033 | 5048 => " (the module nvidia-fs reports an error)",
        5025 => " (permission denied)",
        5036 => " (the GPU's memory cannot be pinned)",
        5049 => " (no batches in compatibility mode)",
        _ => "",
    }
}

/// What the driver says of itself, as bits and numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// Of the module nvidia-fs; zero without it.
    pub module_version: (u32, u32),
    pub status_flags: u32,
    pub control_flags: u32,
    pub feature_flags: u32,
    pub max_direct_io_bytes: u64,
    pub max_batch: u32,
}

/// The library with its driver open.
pub struct CuFile {
    functions: Functions,
    batches: Option<BatchFunctions>,
    version: Option<VersionFunctions>,
    _library: Library,
}

fn checked(function: &'static str, status: Status) -> Result<(), CuFileError> {
    match status.error {
        0 => Ok(()),
        code => Err(CuFileError::Own { function, code: code.abs() }),
    }
}

impl CuFile {
    /// Loads the library and opens its driver. Look for its device first.
    pub fn open(name: OsString) -> Result<Rc<Self>, CuFileError> {
        let (library, name) = load(name)?;
        let functions = Functions::find(&library, &name)?;
        let batches = BatchFunctions::find(&library, &name).ok();
        let version = VersionFunctions::find(&library, &name).ok();
        // SAFETY: it takes nothing. It may damage this process, which is there to be damaged.
        checked("cuFileDriverOpen", unsafe { (functions.cuFileDriverOpen)() })?;
        Ok(Rc::new(Self { functions, batches, version, _library: library }))
    }

    /// 1130 for 1.13. None for libraries older than CUDA 12.
    pub fn version(&self) -> Option<i32> {
        let mut version = 0;
        // SAFETY: it writes one number.
        let status = unsafe { (self.version.as_ref()?.cuFileGetVersion)(&mut version) };
        checked("cuFileGetVersion", status).ok().map(|()| version)
    }

    pub fn properties(&self) -> Result<Properties, CuFileError> {
        let mut raw = RawProperties::default();
        // SAFETY: the struct is the documented one, with room to spare behind it.
        checked("cuFileDriverGetProperties", unsafe { (self.functions.cuFileDriverGetProperties)(&mut raw) })?;
        Ok(Properties {
            module_version: (raw.major, raw.minor),
            status_flags: raw.status_flags,
            control_flags: raw.control_flags,
            feature_flags: raw.feature_flags,
            max_direct_io_bytes: (raw.max_direct_io_kib as u64) << 10,
            max_batch: raw.max_batch,
        })
    }
}

impl Drop for CuFile {
    fn drop(&mut self) {
        // SAFETY: handles, buffers and batches hold `self`, so that none of them is left.
        unsafe { (self.functions.cuFileDriverClose)() };
    }
}

/// A file that cuFile may read.
pub struct Handle {
    cufile: Rc<CuFile>,
    handle: *mut c_void,
    _file: File,
}

impl Handle {
    /// `file` is open for reading, with O_DIRECT where that is to bypass the page cache.
    pub fn new(cufile: &Rc<CuFile>, file: File) -> Result<Rc<Self>, CuFileError> {
        let descriptor = file.as_raw_fd() as usize as *mut c_void;
        let mut description = Description { kind: DESCRIPTOR, handle: descriptor, operations: std::ptr::null() };
        let mut handle = std::ptr::null_mut();
        // SAFETY: the union holds the descriptor in its first bytes (the machines of CUDA are little-endian); the file
        // lives as long as the handle.
        let status = unsafe { (cufile.functions.cuFileHandleRegister)(&mut handle, &mut description) };
        checked("cuFileHandleRegister", status)?;
        Ok(Rc::new(Self { cufile: Rc::clone(cufile), handle, _file: file }))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: registered above, and batches hold the handles of what they read.
        unsafe { (self.cufile.functions.cuFileHandleDeregister)(self.handle) };
    }
}

/// Device memory that cuFile may read into.
pub struct Buffer {
    cufile: Rc<CuFile>,
    memory: Rc<Memory>,
    is_registered: bool,
}

impl Buffer {
    /// Registers it, where cuFile can; where it cannot, each read goes through a buffer of cuFile's own.
    pub fn new(cufile: &Rc<CuFile>, memory: Rc<Memory>) -> Rc<Self> {
        // SAFETY: the memory lives as long as this.
        let status = unsafe { (cufile.functions.cuFileBufRegister)(memory.pointer(), memory.len(), 0) };
        let is_registered = checked("cuFileBufRegister", status).is_ok();
        Rc::new(Self { cufile: Rc::clone(cufile), memory, is_registered })
    }

    pub fn memory(&self) -> &Rc<Memory> {
        &self.memory
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.is_registered {
            // SAFETY: registered above; batches hold the buffers of what they read.
            unsafe { (self.cufile.functions.cuFileBufDeregister)(self.memory.pointer()) };
        }
    }
}

/// One read: `len` bytes of the file from `offset` to `at` of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub offset: u64,
    pub len: usize,
    pub at: usize,
}

impl Request {
    fn check(&self, buffer: &Buffer) {
        let fits = self.at.checked_add(self.len).is_some_and(|end| end <= buffer.memory.len());
        assert!(fits, "{self:?} is outside of a buffer of {} bytes", buffer.memory.len());
    }
}

/// Reads now. Gives the bytes, which may be fewer than were asked for.
///
/// # Panics
/// Where the request does not lie in the buffer.
pub fn read(file: &Handle, buffer: &Buffer, request: Request) -> Result<usize, CuFileError> {
    request.check(buffer);
    let Request { offset, len, at } = request;
    // SAFETY: the range lies in the buffer; file and buffer are registered and outlive the call.
    let done = unsafe {
        (file.cufile.functions.cuFileRead)(file.handle, buffer.memory.pointer(), len, offset as off_t, at as off_t)
    };
    outcome(done as i64)
}

fn outcome(done: i64) -> Result<usize, CuFileError> {
    let function = "cuFileRead";
    match done {
        0.. => Ok(done as usize),
        -1 => Err(CuFileError::System { function, error: std::io::Error::last_os_error() }),
        _ if -done >= OWN_ERRORS => Err(CuFileError::Own { function, code: -done as i32 }),
        _ => Err(CuFileError::System { function, error: std::io::Error::from_raw_os_error(-done as i32) }),
    }
}

/// Several reads at once.
pub struct Batch {
    cufile: Rc<CuFile>,
    handle: *mut c_void,
    capacity: usize,
    /// What the reads in flight use.
    used: RefCell<Vec<(Rc<Handle>, Rc<Buffer>)>>,
    in_flight: usize,
}

impl Batch {
    /// None where the library or its mode has no batches.
    pub fn new(cufile: &Rc<CuFile>, capacity: usize) -> Option<Self> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: it writes one handle.
        let status = unsafe { (cufile.batches.as_ref()?.cuFileBatchIOSetUp)(&mut handle, capacity as c_uint) };
        checked("cuFileBatchIOSetUp", status).ok()?;
        Some(Self { cufile: Rc::clone(cufile), handle, capacity, used: RefCell::default(), in_flight: 0 })
    }

    fn functions(&self) -> &BatchFunctions {
        self.cufile.batches.as_ref().expect("a batch was set up by them")
    }

    /// Starts all of `requests`. On an error nothing is known to be in flight, and this must not be used again.
    ///
    /// # Panics
    /// Where there are more than the batch has room for, others are in flight, or one does not lie in the buffer.
    pub fn submit(&mut self, file: &Rc<Handle>, buffer: &Rc<Buffer>, requests: &[Request]) -> Result<(), CuFileError> {
        assert!(self.in_flight == 0 && requests.len() <= self.capacity, "a batch is filled once");
        let mut parameters: Vec<Parameters> = requests
            .iter()
            .enumerate()
            .map(|(index, request)| {
                request.check(buffer);
                Parameters {
                    mode: BATCH_MODE,
                    base: buffer.memory.pointer(),
                    file_offset: request.offset as off_t,
                    base_offset: request.at as off_t,
                    len: request.len,
                    file: file.handle,
                    operation: READ,
                    cookie: index as *mut c_void,
                }
            })
            .collect();
        self.used.borrow_mut().push((Rc::clone(file), Rc::clone(buffer)));
        self.in_flight = requests.len();
        let (count, pointer) = (parameters.len() as c_uint, parameters.as_mut_ptr());
        // SAFETY: the parameters are copied by the call; what they name is held by `used` until it has completed.
        checked("cuFileBatchIOSubmit", unsafe {
            (self.functions().cuFileBatchIOSubmit)(self.handle, count, pointer, 0)
        })
    }

    /// Waits for at least one read, and gives the index of each that has ended with what it came to. Empty when none is
    /// in flight.
    pub fn wait(&mut self) -> Result<Vec<(usize, Result<usize, CuFileError>)>, CuFileError> {
        if self.in_flight == 0 {
            return Ok(Vec::new());
        }
        let mut events = vec![Event { cookie: std::ptr::null_mut(), status: 0, result: 0 }; self.in_flight];
        let mut count = events.len() as c_uint;
        let pointer = events.as_mut_ptr();
        // SAFETY: the driver writes at most `count` events, and their number.
        checked("cuFileBatchIOGetStatus", unsafe {
            (self.functions().cuFileBatchIOGetStatus)(self.handle, 1, &mut count, pointer, std::ptr::null_mut())
        })?;
        events.truncate(count as usize);
        self.in_flight -= events.len();
        if self.in_flight == 0 {
            self.used.borrow_mut().clear();
        }
        Ok(events.into_iter().map(|event| (event.cookie as usize, ended(&event))).collect())
    }
}

fn ended(event: &Event) -> Result<usize, CuFileError> {
    match event.status {
        COMPLETE if event.result as i64 >= 0 => Ok(event.result),
        COMPLETE => Err(CuFileError::Read(event.result as i64)),
        status => Err(CuFileError::Read(i64::from(status))),
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            // The device may still write there: everything stays until the process ends.
            std::mem::forget(self.used.take());
            return;
        }
        // SAFETY: set up above, and nothing is in flight.
        unsafe { (self.functions().cuFileBatchIODestroy)(self.handle) };
    }
}
