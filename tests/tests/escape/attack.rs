//! What an attack is: a few lines of Python, where it is first shown to work, where it must not, and what stops it.

/// One way out.
#[derive(Debug, Clone, Copy)]
pub struct Attack {
    /// The heading that it stands under.
    pub area: &'static str,
    /// What must not happen. Unique.
    pub name: &'static str,
    /// Python that does it, or raises.
    pub code: &'static str,
    /// Python that runs outside afterwards, as root, and raises unless it did happen; empty: the attempt tells.
    pub proof: &'static str,
    /// Where it is first shown to work.
    pub control: Control,
    /// Whether commands without a sandbox promise the same.
    pub everywhere: bool,
    /// Whether each control gets a repository of its own.
    pub fresh: bool,
    /// Everything that stops it in a writable sandbox. One: without it the attack works.
    pub layers: &'static [Layer],
}

/// As whom, and where, an attack works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// The tools user, outside.
    Tools,
    /// The service user, outside: what is attacked is its own.
    Service,
    /// root, in namespaces of its own, so that the host stays as it is.
    Root,
}

impl Control {
    /// The word in the table.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Tools => "tools user",
            Self::Service => "service user",
            Self::Root => "root",
        }
    }
}

/// What stops an attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// An empty root with little in it.
    Mounts,
    /// What is shown of the system, and what is protected in a workspace, is mounted read-only.
    ReadOnly,
    /// A pid namespace.
    Pid,
    /// A network namespace.
    Net,
    /// An IPC namespace.
    Ipc,
    /// A user namespace without privileges in it, no further ones, and no_new_privs.
    User,
    /// The landlock domain.
    Landlock,
    /// The seccomp filter.
    Seccomp,
    /// rlimits and sizes of file systems.
    Limits,
    /// What a command made is looked at before its receipt, and taken away or stripped.
    Scan,
    /// launch cannot be looked into.
    Hidden,
    /// toolsd: time, output, and the end of all that is left.
    Executor,
    /// Environment, descriptors, session and umask are made from nothing.
    Start,
    /// What is attacked belongs to another account.
    Uid,
}

impl Layer {
    /// The words in the table.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Mounts => "mount namespace",
            Self::ReadOnly => "read-only mounts",
            Self::Pid => "pid namespace",
            Self::Net => "network namespace",
            Self::Ipc => "IPC namespace",
            Self::User => "no privileges",
            Self::Landlock => "landlock",
            Self::Seccomp => "seccomp",
            Self::Limits => "limits",
            Self::Scan => "scan before the receipt",
            Self::Hidden => "launch is not dumpable",
            Self::Executor => "executor",
            Self::Start => "clean start",
            Self::Uid => "second uid",
        }
    }
}

/// An attack that works as the tools user outside, and not in a sandbox.
pub const fn tools(area: &'static str, name: &'static str, code: &'static str, layers: &'static [Layer]) -> Attack {
    Attack { area, name, code, proof: "", control: Control::Tools, everywhere: false, fresh: false, layers }
}

/// One that only root can show to work.
pub const fn root(area: &'static str, name: &'static str, code: &'static str, layers: &'static [Layer]) -> Attack {
    Attack { control: Control::Root, ..tools(area, name, code, layers) }
}

/// One on what is the service user's: nobody's command may do it.
pub const fn service(area: &'static str, name: &'static str, code: &'static str, layers: &'static [Layer]) -> Attack {
    Attack { control: Control::Service, everywhere: true, ..tools(area, name, code, layers) }
}

impl Attack {
    /// That it happened shows afterwards.
    pub const fn proof(self, proof: &'static str) -> Self {
        Self { proof, ..self }
    }

    /// No command may do it, not even one without a sandbox.
    pub const fn everywhere(self) -> Self {
        Self { everywhere: true, ..self }
    }

    /// It changes the repository that it works in.
    pub const fn fresh(self) -> Self {
        Self { fresh: true, ..self }
    }
}
