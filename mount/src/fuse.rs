//! The adapter: FUSE requests to operations of [`Fs`], and their results back. It decides nothing.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    AccessFlags, BackingId, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;
use rustix::fs::OFlags;
use weightfs::predict::Access;

use crate::answer::{GENERATION, errno, reply_attr, reply_empty, reply_entry, reply_xattr};
use crate::fs::{Caller, Change, Fs, NewMode, OpenMode, OpenReply};
use crate::translate::{attr, kind, timespec};

/// The largest request: a loader's read of 2 MiB at an odd offset fits into one, if the kernel's limit allows it.
const LARGEST_REQUEST: u32 = 4 << 20;

/// What the kernel offered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offered {
    pub passthrough: bool,
    pub shared_maps_of_direct_files: bool,
}

/// The kernel's reference to the arena file behind each resident number, and how many handles use it.
type Backing = HashMap<u64, (Arc<BackingId>, u32)>;

pub struct Adapter {
    fs: Arc<Fs>,
    offered: Arc<Mutex<Offered>>,
    backing: Arc<Mutex<Backing>>,
}

impl Adapter {
    /// `offered` is set once the kernel has introduced itself.
    pub fn new(fs: Arc<Fs>, offered: Arc<Mutex<Offered>>) -> Self {
        Self { fs, offered, backing: Arc::default() }
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
    Caller { uid: request.uid(), gid: request.gid(), thread: request.pid() }
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
        let _ = config.set_max_write(LARGEST_REQUEST);
        let _ = config.set_max_background(64);
        let _ = config.set_congestion_threshold(48);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        reply_entry(reply, self.fs.lookup(parent.0, name, &caller(request)));
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        self.fs.forget(node.0, lookups);
    }

    fn getattr(&self, _: &Request, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply_attr(reply, self.fs.getattr(node.0));
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
        reply_attr(reply, self.fs.setattr(node.0, handle.map(|handle| handle.0), &change, &caller(request)));
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        match self.fs.readlink(node.0) {
            Ok(target) => reply.data(target.as_os_str().as_bytes()),
            Err(error) => reply.error(errno(&error)),
        }
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
        reply_entry(reply, self.fs.mknod(parent.0, name, mode, device, &caller(request)));
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, mask: u32, reply: ReplyEntry) {
        reply_entry(reply, self.fs.mkdir(parent.0, name, NewMode { mode, mask }, &caller(request)));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.fs.unlink(parent.0, name));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.fs.rmdir(parent.0, name));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        reply_entry(reply, self.fs.symlink(parent.0, name, target, &caller(request)));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
        reply_empty(reply, self.fs.rename(parent.0, name, new_parent.0, new_name, flags));
    }

    fn link(&self, _: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        reply_entry(reply, self.fs.link(node.0, parent.0, name));
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (fs, backing) = (Arc::clone(&self.fs), Arc::clone(&self.backing));
        let direct_maps = self.offered.lock().shared_maps_of_direct_files;
        let flags = OFlags::from_bits_retain(flags.0 as u32);
        self.fs.open(node.0, flags, &caller(request), move |result| match result {
            Ok(OpenReply { handle, mode: OpenMode::Passthrough { resident, generation } }) => {
                let mut backing = backing.lock();
                let known = backing.get(&resident).map(|(id, _)| Ok(Arc::clone(id)));
                let arena = generation.arena().expect("a held generation has an arena file");
                match known.unwrap_or_else(|| reply.open_backing(arena.as_file()).map(Arc::new)) {
                    Ok(id) => {
                        backing.entry(resident).or_insert_with(|| (Arc::clone(&id), 0)).1 += 1;
                        drop(backing);
                        reply.opened_passthrough(FileHandle(handle), FopenFlags::empty(), &id);
                    }
                    Err(error) => {
                        // The bytes are in RAM all the same: the daemon hands them out.
                        tracing::warn!(%error, "passthrough does not work here; files are streamed instead");
                        fs.set_passthrough(false);
                        reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
                    }
                }
            }
            Ok(OpenReply { handle, mode: OpenMode::Direct }) if direct_maps => {
                reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
            }
            Ok(OpenReply { handle, .. }) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(error) => reply.error(errno(&error)),
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
        match self.fs.create(parent.0, name, mode, flags, &caller(request)) {
            Ok((entry, opened)) => {
                let direct = direct_maps && matches!(opened.mode, OpenMode::Direct);
                let flags = if direct { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::empty() };
                reply.created(&entry.ttl.attr, &attr(&entry.attr), GENERATION, FileHandle(opened.handle), flags);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
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
        self.fs.read(handle.0, range, access, move |result: Result<&[u8], _>| match result {
            Ok(bytes) => reply.data(bytes),
            Err(error) => reply.error(Errno::from_i32(error.errno())),
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let privileged = !flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let (fs, data) = (Arc::clone(&self.fs), data.to_vec());
        self.fs.may_wait(move || match fs.write(handle.0, offset, &data, privileged) {
            Ok(written) => reply.written(written),
            Err(error) => reply.error(errno(&error)),
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Writes have reached the source already.
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        if let Some(resident) = self.fs.release(handle.0) {
            let mut backing = self.backing.lock();
            if let Some((_, handles)) = backing.get_mut(&resident) {
                *handles -= 1;
                if *handles == 0 {
                    backing.remove(&resident);
                }
            }
        }
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        let fs = Arc::clone(&self.fs);
        self.fs.may_wait(move || reply_empty(reply, fs.fsync(handle.0, data_only)));
    }

    fn opendir(&self, _: &Request, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.fs.opendir(node.0) {
            Ok((handle, keep)) => {
                let cached = FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE;
                reply.opened(FileHandle(handle), if keep { cached } else { FopenFlags::empty() });
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.fs.entries(handle.0, offset == 0) {
            Ok(entries) => {
                for (next, entry) in (offset + 1..).zip(entries.iter().skip(offset as usize)) {
                    if reply.add(INodeNo(entry.inode), next, kind(entry.kind), &entry.name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        directory: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let entries = match self.fs.entries(handle.0, offset == 0) {
            Ok(entries) => entries,
            Err(error) => return reply.error(errno(&error)),
        };
        for (next, entry) in (offset + 1..).zip(entries.iter().skip(offset as usize)) {
            let full = match self.fs.entry_in(handle.0, entry) {
                Ok(Some(found)) => {
                    let full = reply.add(
                        INodeNo(found.node),
                        next,
                        &entry.name,
                        &found.ttl.attr.min(found.ttl.entry),
                        &attr(&found.attr),
                        GENERATION,
                    );
                    if full && !entry.is_dots() {
                        self.fs.forget(found.node, 1);
                    }
                    full
                }
                Ok(None) => false,
                Err(error) => {
                    tracing::debug!(%error, directory = directory.0, "an entry cannot be looked up");
                    false
                }
            };
            if full {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.fs.releasedir(handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let fs = Arc::clone(&self.fs);
        self.fs.may_wait(move || reply_empty(reply, fs.fsyncdir(handle.0)));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.fs.statfs() {
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
        }
    }

    fn setxattr(&self, _: &Request, node: INodeNo, name: &OsStr, value: &[u8], flags: i32, _: u32, reply: ReplyEmpty) {
        reply_empty(reply, self.fs.setxattr(node.0, name, value, flags as u32));
    }

    fn getxattr(&self, _: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        reply_xattr(reply, size, self.fs.getxattr(node.0, name));
    }

    fn listxattr(&self, _: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        reply_xattr(reply, size, self.fs.listxattr(node.0));
    }

    fn removexattr(&self, _: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(reply, self.fs.removexattr(node.0, name));
    }

    fn access(&self, _: &Request, node: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply_empty(reply, self.fs.access(node.0));
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let range = offset..offset.saturating_add(length);
        let fs = Arc::clone(&self.fs);
        self.fs.may_wait(move || reply_empty(reply, fs.fallocate(handle.0, range, mode as u32)));
    }

    fn lseek(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        let hole = whence == nix::libc::SEEK_HOLE;
        if !hole && whence != nix::libc::SEEK_DATA {
            return reply.error(Errno::EINVAL);
        }
        match self.fs.seek(handle.0, offset, hole) {
            Ok(found) => reply.offset(found as i64),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        from: FileHandle,
        from_offset: u64,
        _: INodeNo,
        to: FileHandle,
        to_offset: u64,
        length: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let fs = Arc::clone(&self.fs);
        self.fs.may_wait(move || match fs.copy_file_range(from.0, from_offset, to.0, to_offset, length) {
            Ok(copied) => reply.written(copied as u32),
            Err(error) => reply.error(errno(&error)),
        });
    }
}
