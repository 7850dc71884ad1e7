//! The numbers of the groups, and where the kernel says that a process is, as tables.

use salaam_core::limits::Limits;

use super::{
    bounds::{bounds, host_memory},
    place::{name, place},
};

const MOUNTS: &str = "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n\
                      30 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";

#[test]
fn ones_own_group_is_found_only_where_the_whole_hierarchy_is() {
    let of = |own: &str, mounts: &str| place(own, mounts).map(|place| place.path);
    let unit = "1:cpu:/x\n0::/system.slice/salaam.service\n";
    assert_eq!(of(unit, MOUNTS), Some("/sys/fs/cgroup/system.slice/salaam.service".into()));
    assert_eq!(name(unit), Some("/system.slice/salaam.service"));
    for none in ["0::/\n", "0::/../x\n", "0::/a/../b\n", "0::/a//b\n", "1:cpu:/x\n", ""] {
        assert_eq!(of(none, MOUNTS), None, "{none:?}");
    }
    assert_eq!(of(unit, &MOUNTS.replace("0:26 / ", "0:26 /container ")), None);
    assert_eq!(of(unit, ""), None);
}

#[test]
fn all_commands_together_may_use_their_slots_and_never_the_whole_host() {
    let limits = Limits {
        memory_bytes: 1 << 30,
        tmp_bytes: 1 << 29,
        processes: 100,
        concurrent_commands: 3,
        ..Limits::default()
    };
    let large = bounds(&limits, Some(1 << 40), Some(4096));
    assert_eq!((large.commands, large.command_memory, large.command_tasks), (4, 2 << 30, 101));
    assert_eq!((large.memory, large.tasks), ((3 * 2 + 1) << 30, 3 * 101 + 256));
    let small = bounds(&limits, Some(4 << 30), Some(400));
    assert_eq!((small.memory, small.tasks), ((4 << 30) / 8 * 7, 400 - 256), "the service keeps its share");
    assert_eq!(bounds(&limits, None, None), large, "what is not known does not lower it");
    assert_eq!(bounds(&limits, None, Some(1)).tasks, 64, "and an executor can always be started");
    let most = bounds(&Limits::CEILING, None, None);
    assert_eq!(most.commands, 65);
}

#[test]
fn the_hosts_memory_is_read_or_not_known() {
    assert_eq!(host_memory("MemTotal:       2031616 kB\nMemFree: 1 kB\n"), Some(2_031_616 * 1024));
    for bad in ["", "MemTotal: 5\n", "MemTotal: x kB\n", "MemTotal: 99999999999999999999 kB\n"] {
        assert_eq!(host_memory(bad), None, "{bad:?}");
    }
}
