//! What crosses between the service and the reader of one workspace, as values. The wire form and its checks are in
//! salaam-proto.
//!
//! One request at a time, one answer to each. The service takes the reader for hostile: what it says is checked like
//! what a stranger says.

use crate::{canary::Canary, edit::Image, policy::word};

/// The largest message to the reader: a path, a pattern and a place.
pub const MAX_REQUEST_BYTES: usize = 64 << 10;
/// The largest message from the reader: one whole file and what goes with it.
pub const MAX_ANSWER_BYTES: usize = crate::edit::MAX_FILE_BYTES + (64 << 10);
/// A pattern of a search.
pub const MAX_PATTERN_BYTES: usize = 1024;
/// Entries of one page of a listing.
pub const MAX_ENTRIES: usize = 1000;
/// Lines of one page of a file.
pub const MAX_LINES: u64 = 10_000;
/// Of one line this much is given; the rest is counted. One minified line must not be the whole page.
pub const MAX_LINE_BYTES: usize = 4096;
/// Bytes of text of one page, of a file or of a search: eight times what a model is told.
pub const MAX_PAGE_BYTES: usize = 256 << 10;
/// Matches of one page of a search.
pub const MAX_MATCHES: usize = 1000;
/// What is shown of a matching line.
pub const MAX_MATCH_BYTES: usize = 400;
/// Groups of the account that runs commands; it has its own and the work group.
pub const MAX_GROUPS: usize = 64;
/// What a parser says about a pattern.
pub const MAX_DETAIL_BYTES: usize = 256;
/// PATH_MAX of Linux: where a link says that it leads.
pub const MAX_TARGET_BYTES: usize = 4096;
/// As the line of a [`Place`]: all of that file or directory.
pub const ALL_LINES: u64 = u64::MAX;

/// What the service tells the reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToReader {
    /// First, once.
    Begin(Begin),
    /// One thing to look at.
    Ask(Request),
}

/// What a reader must know; the root itself comes as a descriptor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    /// The account that runs commands (the service's own where there is no second one): what it could not read is
    /// not read for anybody.
    pub uid: u32,
    /// All its groups, at most [`MAX_GROUPS`].
    pub groups: Vec<u32>,
}

/// One thing to look at, beneath the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The entries of a directory, in order of name.
    List {
        /// The directory; empty = the root.
        path: Vec<u8>,
        /// Only names after this one.
        after: Option<Vec<u8>>,
        /// At most so many, up to [`MAX_ENTRIES`].
        most: u32,
    },
    /// Lines of a file.
    Read {
        /// The file.
        path: Vec<u8>,
        /// The first line, from 1.
        from_line: u64,
        /// At most so many, up to [`MAX_LINES`].
        lines: u64,
    },
    /// Lines that match, in order of path and line.
    Search {
        /// A regular expression.
        pattern: String,
        /// A directory or a file; empty = the root.
        path: Vec<u8>,
        /// Only matches behind this place, as [`Found::next`] had it.
        after: Option<Place>,
        /// At most so many, up to [`MAX_MATCHES`].
        most: u32,
    },
    /// All of a file, for an edit.
    Whole {
        /// The file.
        path: Vec<u8>,
        /// Larger is refused; up to [`MAX_FILE_BYTES`](crate::edit::MAX_FILE_BYTES).
        most_bytes: u64,
    },
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file, relative to the root.
    pub path: Vec<u8>,
    /// The line, from 1, or [`ALL_LINES`].
    pub line: u64,
}

/// What the reader says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromReader {
    /// Confined, and shown to be.
    Ready {
        /// Its build, as `salaam --version` prints it.
        build: String,
        /// What it tried and could not do.
        canary: Vec<Canary>,
    },
    /// To the one request that is open.
    Answer(Answer),
}

/// What was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// To [`Request::List`].
    Listed(Listed),
    /// To [`Request::Read`].
    Lines(Lines),
    /// To [`Request::Search`].
    Found(Found),
    /// To [`Request::Whole`].
    Whole(Whole),
    /// To any: it was not done.
    Refused(NotRead),
}

/// A page of a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// In the order of the bytes of their names.
    pub entries: Vec<Entry>,
    /// There are more behind the last.
    pub more: bool,
}

/// A page of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lines {
    /// In order, the one that was asked for first; at most [`MAX_PAGE_BYTES`] together.
    pub lines: Vec<Line>,
    /// There are more behind the last.
    pub more: bool,
    /// Lines of the whole file, where its end was reached.
    pub total: Option<u64>,
    /// The size of the file in bytes.
    pub size: u64,
    /// It has NUL bytes, so it is hardly text.
    pub binary: bool,
}

/// One line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    /// Its bytes with its line feed, UTF-8 or not; the last line of a file may lack one.
    pub bytes: Vec<u8>,
    /// Bytes of it that are left out, its line feed among them; 0 = it is whole.
    pub cut: u64,
}

/// A page of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found {
    /// In order of path and line.
    pub matches: Vec<Match>,
    /// From where to go on: the page is full, or its time is over (then it may have no match). Absent = all was
    /// searched.
    pub next: Option<Place>,
    /// Files that were searched for this page.
    pub files: u64,
    /// What was not.
    pub skipped: Skipped,
}

/// What a page of a search left out, counted. What ignore files name is not: it was not asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Files with NUL bytes.
    pub binary: u64,
    /// Files and directories that are closed to the tools user, or that could not be read.
    pub closed: u64,
    /// Files and lines of which only the first part was searched.
    pub large: u64,
    /// Directories too deep to enter.
    pub deep: u64,
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: Vec<u8>,
    /// What it is.
    pub kind: EntryKind,
    /// Its size in bytes, of a file.
    pub size: u64,
    /// Its permission bits.
    pub mode: u32,
    /// Whether [`Request::Read`] of it, a file, would be refused: the tools user may not read it, or only it may.
    pub closed: bool,
    /// Where a link leads, as it says itself; else empty.
    pub target: Vec<u8>,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link; it is not followed.
    Link,
    /// A FIFO, a socket, a device, or where another file system is mounted; it is never opened.
    Other,
}
word!(EntryKind { File = "file", Directory = "directory", Link = "link", Other = "other" });

/// A line that matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// Where.
    pub place: Place,
    /// The first byte of the match in its line, from 1.
    pub column: u64,
    /// The line without its line feed, or [`MAX_MATCH_BYTES`] of it around the match.
    pub text: Vec<u8>,
    /// Bytes of the line before `text`.
    pub cut_before: u64,
    /// Bytes of the searched line behind `text`.
    pub cut_after: u64,
}

/// A whole file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Whole {
    /// Its bytes and mode.
    pub image: Image,
    /// st_dev.
    pub device: u64,
    /// st_ino.
    pub inode: u64,
    /// How many names it has.
    pub links: u64,
}

/// A request that was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotRead {
    /// Why.
    pub why: Refused,
    /// For [`Refused::Pattern`], what the parser says about the pattern; else empty.
    pub detail: String,
}

/// Why something was not read. That is all that is said: never text of a file, not even in what a parser says
/// about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refused {
    /// There is no such entry.
    NotFound,
    /// A directory was asked for.
    NotADirectory,
    /// It is no regular file.
    NotRegular,
    /// A link on the way leads out, or is not followed.
    Link,
    /// Another file system is mounted on the way.
    Mount,
    /// More components and links than are followed.
    Steps,
    /// The tools user may not read it.
    Closed,
    /// Only the tools user may read it.
    ToolsOnly,
    /// Another process holds a lease on it.
    Busy,
    /// It is set-user-ID, set-group-ID or sticky, which no edit keeps.
    SpecialMode,
    /// Larger than was asked for, or than is read.
    TooLarge,
    /// It changed while it was read.
    Changed,
    /// The pattern is no regular expression, or costs too much.
    Pattern,
    /// It took too long.
    Time,
    /// The file system failed.
    Io,
}
word!(Refused {
    NotFound = "not-found",
    NotADirectory = "not-a-directory",
    NotRegular = "not-regular",
    Link = "link",
    Mount = "mount",
    Steps = "steps",
    Closed = "closed",
    ToolsOnly = "tools-only",
    Busy = "busy",
    SpecialMode = "special-mode",
    TooLarge = "too-large",
    Changed = "changed",
    Pattern = "pattern",
    Time = "time",
    Io = "io",
});

impl Refused {
    /// It in words, to stand behind the path.
    pub const fn words(self) -> &'static str {
        match self {
            Self::NotFound => "there is nothing",
            Self::NotADirectory => "it is no directory",
            Self::NotRegular => "it is no regular file",
            Self::Link => "a link there leads out of the workspace, or is not followed",
            Self::Mount => "another file system is mounted there",
            Self::Steps => "the path takes too many steps or links",
            Self::Closed => "the tools user may not read it, so it is read for nobody",
            Self::ToolsOnly => {
                "only the tools user may read it: a command can give the work group the right (chmod g+r)"
            }
            Self::Busy => "another process holds a lease on it",
            Self::SpecialMode => "it is set-user-ID, set-group-ID or sticky",
            Self::TooLarge => "it is larger than may be read",
            Self::Changed => "it changed while it was read",
            Self::Pattern => "the pattern cannot be searched for",
            Self::Time => "it took longer than it may",
            Self::Io => "the file system failed",
        }
    }
}
