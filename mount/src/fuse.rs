//! The adapter: FUSE requests to operations of [`Fs`], and their results back. It decides nothing.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use weightfs::predict::Access;
use weightfs::store::LARGEST_READ;

use crate::answer::{add_full_entries, errno, reply_attr, reply_empty, reply_entry, reply_open, reply_xattr};
use crate::backing::Backings;
use crate::fs::{Caller, Change, Fs, NewMode, OpenMode};
use crate::translate::{attr, kind, timespec};
use crate::worker::session::{REHEARSED, RESENT, Stage};

/// What the kernel offered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offered {
    pub passthrough: bool,
    pub shared_maps_of_direct_files: bool,
}

pub struct Adapter {
    fs: Arc<Fs>,
    offered: Arc<Mutex<Offered>>,
    backings: Arc<Backings>,
    pub stage: Arc<Stage>,
}

impl Adapter {
    /// `offered` is set once the kernel has introduced itself.
    pub fn new(fs: Arc<Fs>, offered: Arc<Mutex<Offered>>, backings: Arc<Backings>) -> Self {
        Self { fs, offered, backings, stage: Arc::default() }
    }
}

/// Asks for what not every kernel has.
pub fn ask_of_kernel(config: &mut KernelConfig) -> Offered {
    Offered {
        shared_maps_of_direct_files: config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_ok(),
        // Arena files lie on a plain file system: one level.
        passthrough: config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok(),
    }
}

fn caller(request: &Request) -> Caller {
    let unique = request.unique().0;
    let (unique, resent) = (unique & !RESENT, unique & RESENT != 0);
    Caller { uid: request.uid(), gid: request.gid(), thread: request.pid(), unique, resent }
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_DONT_MASK,
        ];
        for flag in wanted {
            if config.add_capabilities(flag).is_err() {
                tracing::debug!(?flag, "the kernel lacks a feature");
            }
        }
        *self.offered.lock() = ask_of_kernel(config);
        // Each of these answers with the nearest value that is possible where ours is not.
        let _ = config.set_max_write(LARGEST_READ as u32);
        let _ = config.set_max_background(64);
        let _ = config.set_congestion_threshold(48);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (name, caller) = (name.to_owned(), caller(request));
        self.fs.run(parent.0, move |fs| reply_entry(reply, fs.lookup(parent.0, &name, &caller)));
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        self.fs.forget(node.0, lookups);
    }

    fn getattr(&self, request: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let caller = caller(request);
        self.fs.run(node.0, move |fs| reply_attr(reply, fs.once(node.0, &caller, fs.getattr(node.0, &caller))));
    }

    fn setattr(
        &self,
        request: &Request,
        node: INodeNo,
        mode: Option<u32>,
        owner: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (accessed, modified) = (accessed.map(timespec), modified.map(timespec));
        let change = Change { mode, owner, group, size, accessed, modified };
        let (handle, caller) = (handle.map(|handle| handle.0), caller(request));
        self.fs.run(node.0, move |fs| {
            let _underway = fs.begin(&caller);
            reply_attr(reply, fs.setattr(node.0, handle, &change, &caller));
        });
    }

    fn readlink(&self, request: &Request, node: INodeNo, reply: ReplyData) {
        let caller = caller(request);
        self.fs.run(node.0, move |fs| match fs.once(node.0, &caller, fs.readlink(node.0)) {
            Ok(target) => reply.data(target.as_os_str().as_bytes()),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        mask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let (mode, device) = (NewMode { mode, mask }, crate::translate::device(device));
        let (name, caller) = (name.to_owned(), caller(request));
        self.fs.run(parent.0, move |fs| {
            let _underway = fs.begin(&caller);
            reply_entry(reply, fs.last(parent.0, &caller, fs.mknod(parent.0, &name, mode, device, &caller)));
        });
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, mask: u32, reply: ReplyEntry) {
        let (name, mode, caller) = (name.to_owned(), NewMode { mode, mask }, caller(request));
        self.fs.run(parent.0, move |fs| {
            let _underway = fs.begin(&caller);
            reply_entry(reply, fs.last(parent.0, &caller, fs.mkdir(parent.0, &name, mode, &caller)));
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (name, caller) = (name.to_owned(), caller(request));
        self.fs.run(parent.0, move |fs| {
            let _underway = fs.begin(&caller);
            reply_empty(reply, fs.last(parent.0, &caller, fs.unlink(parent.0, &name, &caller)));
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (name, caller) = (name.to_owned(), caller(request));
        self.fs.run(parent.0, move |fs| {
            let _underway = fs.begin(&caller);
            reply_empty(reply, fs.last(parent.0, &caller, fs.rmdir(parent.0, &name, &caller)));
        });
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (name, target, caller) = (name.to_owned(), target.to_owned(), caller(request));
        self.fs.run(parent.0, move |fs| {
            let _underway = fs.begin(&caller);
            reply_entry(reply, fs.last(parent.0, &caller, fs.symlink(parent.0, &name, &target, &caller)));
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        let (name, new_name, caller) = (name.to_owned(), new_name.to_owned(), caller(request));
        self.fs.run(parent.0, move |fs| {
            let _underway = fs.begin(&caller);
            let renamed = fs.rename(parent.0, &name, new_parent.0, &new_name, flags, &caller);
            reply_empty(reply, fs.last(parent.0, &caller, renamed));
        });
    }

    fn link(&self, request: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (name, caller) = (name.to_owned(), caller(request));
        self.fs.run(parent.0, move |fs| {
            let _underway = fs.begin(&caller);
            reply_entry(reply, fs.last(parent.0, &caller, fs.link(node.0, parent.0, &name, &caller)));
        });
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (backings, caller, unique) = (Arc::clone(&self.backings), caller(request), request.unique().0);
        let direct_maps = self.offered.lock().shared_maps_of_direct_files;
        let flags = OFlags::from_bits_retain(flags.0 as u32);
        self.fs.run(node.0, move |fs| {
            let _underway = flags.contains(OFlags::TRUNC).then(|| fs.begin(&caller));
            let answering = Arc::clone(fs);
            fs.open(node.0, flags, &caller, move |result| {
                reply_open(reply, unique, node.0, result, &answering, &backings, direct_maps);
            });
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        mask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let direct_maps = self.offered.lock().shared_maps_of_direct_files;
        let (mode, flags) = (NewMode { mode, mask }, OFlags::from_bits_retain(flags as u32));
        let (name, caller) = (name.to_owned(), caller(request));
        self.fs.run(parent.0, move |fs| {
            let _underway = fs.begin(&caller);
            match fs.last(parent.0, &caller, fs.create(parent.0, &name, mode, flags, &caller)) {
                Ok((entry, opened)) => {
                    let direct = direct_maps && matches!(opened.mode, OpenMode::Direct);
                    let flags = if direct { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::empty() };
                    let handle = FileHandle(opened.handle);
                    reply.created(&entry.ttl.attr, &attr(&entry.attr), Generation(0), handle, flags);
                }
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let range = offset..offset.saturating_add(u64::from(size));
        // Reads by a system call come with the owner of locks, page faults and their readahead without.
        let access = if owner.is_some() { Access::Read } else { Access::Fault };
        self.fs.run(node.0, move |fs| {
            fs.read(handle.0, range, access, move |result: Result<&[u8], _>| match result {
                Ok(bytes) => reply.data(bytes),
                Err(error) => reply.error(Errno::from_i32(error.errno())),
            });
        });
    }

    fn write(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if handle.0 == REHEARSED {
            reply.written(0);
            return self.stage.enter();
        }
        let privileged = !flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let (data, caller) = (data.to_vec(), caller(request));
        self.fs.run_aside(node.0, move |fs| {
            let _underway = fs.begin(&caller);
            match fs.write(handle.0, offset, &data, privileged, caller.resent) {
                Ok(written) => reply.written(written),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Writes have reached the source already.
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        // Closing a file may wait too.
        let backings = Arc::clone(&self.backings);
        self.fs.run(node.0, move |fs| {
            if let Some(resident) = fs.release(handle.0) {
                backings.release(resident, handle.0);
            }
            reply.ok();
        });
    }

    fn fsync(&self, _: &Request, node: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        self.fs.run_aside(node.0, move |fs| reply_empty(reply, fs.fsync(handle.0, data_only)));
    }

    fn opendir(&self, request: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let caller = caller(request);
        self.fs.run(node.0, move |fs| match fs.last(node.0, &caller, fs.opendir(node.0, &caller)) {
            Ok((handle, keep)) => {
                let cached = FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE;
                reply.opened(FileHandle(handle), if keep { cached } else { FopenFlags::empty() });
            }
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn readdir(&self, _: &Request, node: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.fs.run(node.0, move |fs| match fs.entries(handle.0, offset == 0) {
            Ok(entries) => {
                for (next, entry) in (offset + 1..).zip(entries.iter().skip(offset as usize)) {
                    if reply.add(INodeNo(entry.inode), next, kind(entry.kind), &entry.name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn readdirplus(
        &self,
        _: &Request,
        directory: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.fs.run(directory.0, move |fs| match fs.entries(handle.0, offset == 0) {
            Ok(entries) => {
                add_full_entries(&mut reply, fs, handle.0, offset, &entries);
                reply.ok();
            }
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn releasedir(&self, _: &Request, node: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.fs.run(node.0, move |fs| {
            fs.releasedir(handle.0);
            reply.ok();
        });
    }

    fn fsyncdir(&self, _: &Request, node: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        self.fs.run_aside(node.0, move |fs| reply_empty(reply, fs.fsyncdir(handle.0)));
    }

    fn statfs(&self, _: &Request, node: INodeNo, reply: ReplyStatfs) {
        self.fs.run(node.0, move |fs| match fs.statfs() {
            Ok(s) => reply.statfs(
                s.f_blocks,
                s.f_bfree,
                s.f_bavail,
                s.f_files,
                s.f_ffree,
                s.f_bsize as u32,
                s.f_namemax as u32,
                s.f_frsize as u32,
            ),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value, caller) = (name.to_owned(), value.to_vec(), caller(request));
        self.fs.run(node.0, move |fs| {
            let _underway = fs.begin(&caller);
            let set = fs.setxattr(node.0, &name, &value, flags as u32, &caller);
            reply_empty(reply, fs.last(node.0, &caller, set));
        });
    }

    fn getxattr(&self, request: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let (name, caller) = (name.to_owned(), caller(request));
        self.fs.run(node.0, move |fs| {
            reply_xattr(reply, size, fs.once(node.0, &caller, fs.getxattr(node.0, &name, &caller)));
        });
    }

    fn listxattr(&self, request: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let caller = caller(request);
        self.fs
            .run(node.0, move |fs| reply_xattr(reply, size, fs.once(node.0, &caller, fs.listxattr(node.0, &caller))));
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (name, caller) = (name.to_owned(), caller(request));
        self.fs.run(node.0, move |fs| {
            let _underway = fs.begin(&caller);
            reply_empty(reply, fs.last(node.0, &caller, fs.removexattr(node.0, &name, &caller)));
        });
    }

    fn access(&self, request: &Request, node: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        let caller = caller(request);
        self.fs.run(node.0, move |fs| reply_empty(reply, fs.once(node.0, &caller, fs.access(node.0, &caller))));
    }

    fn fallocate(
        &self,
        request: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (range, caller) = (offset..offset.saturating_add(length), caller(request));
        self.fs.run_aside(node.0, move |fs| {
            let _underway = fs.begin(&caller);
            reply_empty(reply, fs.fallocate(handle.0, range, mode as u32));
        });
    }

    fn lseek(&self, _: &Request, node: INodeNo, handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        let hole = whence == nix::libc::SEEK_HOLE;
        if !hole && whence != nix::libc::SEEK_DATA {
            return reply.error(Errno::EINVAL);
        }
        self.fs.run(node.0, move |fs| match fs.seek(handle.0, offset, hole) {
            Ok(found) => reply.offset(found as i64),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn copy_file_range(
        &self,
        request: &Request,
        _: INodeNo,
        from: FileHandle,
        from_offset: u64,
        node: INodeNo,
        to: FileHandle,
        to_offset: u64,
        length: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let caller = caller(request);
        self.fs.run_aside(node.0, move |fs| {
            let _underway = fs.begin(&caller);
            match fs.copy_file_range(from.0, from_offset, to.0, to_offset, length) {
                Ok(copied) => reply.written(copied as u32),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }
}
