//! The numbers of an edit, each with its reason.

/// Files that one edit touches: what a person can still review as one decision.
pub const MAX_FILES: usize = 64;
/// Changes of one edit: four to a file.
pub const MAX_CHANGES: usize = 256;
/// One file, before and after: it is held in memory on both sides.
pub const MAX_FILE_BYTES: usize = 16 << 20;
/// All files of an edit together, before, and again after.
pub const MAX_EDIT_BYTES: usize = 32 << 20;
/// Bytes that matching reads, all changes together: bounds the time of many changes to one large file.
pub const MAX_SCANNED_BYTES: usize = 128 << 20;
/// The shown form of an edit. What is longer cannot be reviewed, so it cannot be approved.
pub const MAX_DIFF_BYTES: usize = 8 << 20;
/// PATH_MAX of Linux: no system call takes a longer path.
pub const MAX_PATH_BYTES: usize = 4096;
/// The permission bits; set-user-ID, set-group-ID and the sticky bit are never set.
pub const MAX_MODE: u32 = 0o777;
/// Of a mode that an edit gives: without it the file is closed to the account that it then belongs to.
pub(super) const OWNER_READS: u32 = 0o400;
/// The mode of a created file: the work group writes too, others read.
pub const CREATED_MODE: u32 = 0o664;
