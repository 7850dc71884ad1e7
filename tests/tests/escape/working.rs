//! What must go on working inside: the strictest walls are of no use where nothing can be built.

use std::path::Path;

use salaam_tests::{Host, Pair, limit};

/// One thing.
pub struct Work {
    /// What works.
    pub name: &'static str,
    /// The program that it needs; where it is not installed, nothing is shown.
    pub needs: &'static str,
    /// A shell's text that leaves with 0.
    pub text: &'static str,
}

#[rustfmt::skip]
pub const TABLE: &[Work] = &[
    Work { name: "git status in a repository of another account", needs: "git", text: "git status --short && git log --oneline | grep first" },
    Work { name: "git add and commit", needs: "git", text: "echo 2 >new && git add new && git -c user.name=x -c user.email=x@example.org commit -qm second && git show --stat | grep new" },
    Work { name: "git branch, merge and stash", needs: "git", text: "export GIT_AUTHOR_NAME=x GIT_AUTHOR_EMAIL=x@e.org GIT_COMMITTER_NAME=x GIT_COMMITTER_EMAIL=x@e.org; b=$(git symbolic-ref --short HEAD); git checkout -qb side && echo 3 >side && git add side && git commit -qm side && git checkout -q $b && git merge -q side && echo 4 >side && git stash -q && git stash pop -q" },
    Work { name: "git init of a new repository", needs: "git", text: "git init -q fresh && cd fresh && : >f && git add f && git status --short" },
    Work { name: "git clone of the workspace's own repository, which is the service user's", needs: "git", text: "git clone -q . clone-of-theirs && git -C clone-of-theirs log --oneline | grep ." },
    Work { name: "git clone of a repository that a command made", needs: "git", text: "git init -q own && cd own && : >f && git add f && git -c user.name=x -c user.email=x@example.org commit -qm first && cd .. && git clone -q own clone && git -C clone log --oneline | grep first" },
    Work { name: "git worktree add, list and remove", needs: "git", text: "git worktree add -q --detach tree && git worktree list | grep tree && git -C tree status && git worktree remove --force tree" },
    Work { name: "git diff and blame without a pager", needs: "git", text: "echo more >>file && git diff | grep more && git blame file | grep more && git checkout -q file" },
    Work { name: "a C program is compiled and run", needs: "gcc", text: "printf '#include <stdio.h>\\nint main(void) { puts(\"built\"); }\\n' >a.c && gcc -O1 -g -o a a.c && ./a | grep built" },
    Work { name: "make with four jobs", needs: "make", text: "printf 'all: j1 j2 j3 j4\\nj1 j2 j3 j4:\\n\\tsleep 0.1; echo $@ >$@.made\\n' >build.mk && make -s -j4 -f build.mk && ls j1.made j4.made" },
    Work { name: "a static library and a linked program", needs: "gcc", text: "printf 'int f(void) { return 7; }\\n' >l.c && gcc -c l.c && ar rcs libl.a l.o && printf 'int f(void); int main(void) { return f() - 7; }\\n' >m.c && gcc m.c -L. -ll -o m && ./m" },
    Work { name: "a C program with threads and a mutex", needs: "gcc", text: "printf '#include <pthread.h>\\nvoid *g(void *x) { return x; }\\nint main(void) { pthread_t t[32]; for (int i = 0; i < 32; i++) if (pthread_create(t + i, 0, g, 0)) return 1; for (int i = 0; i < 32; i++) pthread_join(t[i], 0); }\\n' >t.c && gcc -pthread t.c -o t && ./t" },
    Work { name: "cargo, where it is installed for all", needs: "cargo", text: "cargo new --vcs none -q made && cd made && cargo build -q --offline && ./target/debug/made" },
    Work { name: "node, with workers", needs: "node", text: "node -e 'const {Worker} = require(\"worker_threads\"); new Worker(\"require(`worker_threads`).parentPort.postMessage(6 * 7)\", {eval: true}).on(\"message\", m => { console.log(m); process.exit(m - 42) })'" },
    Work { name: "node, a server and its client", needs: "node", text: "node -e 'const s = require(\"http\").createServer((q, r) => r.end(\"ok\")).listen(0, () => require(\"http\").get({port: s.address().port}, r => { s.close(); process.exit(r.statusCode - 200) }))'" },
    Work { name: "a Java virtual machine", needs: "java", text: "java -version 2>&1 | grep -i version" },
    Work { name: "python: a pool of processes", needs: "python3", text: "python3 -c 'from multiprocessing import Pool\nwith Pool(4) as p: assert sum(p.map(abs, range(100))) == 4950'" },
    Work { name: "python: executors with spawned processes and shared memory", needs: "python3", text: "printf 'import multiprocessing as m\\nfrom multiprocessing import shared_memory\\ndef f(n):\\n s = shared_memory.SharedMemory(n); v = s.buf[0]; s.close(); return v\\nif __name__ == \"__main__\":\\n s = shared_memory.SharedMemory(create=True, size=8); s.buf[0] = 9\\n assert m.get_context(\"spawn\").Pool(1).map(f, [s.name]) == [9]\\n s.close(); s.unlink()\\n' >spawned.py && python3 spawned.py" },
    Work { name: "python: semaphores and queues between processes", needs: "python3", text: "python3 -c 'import multiprocessing as m\nq = m.Queue(); p = m.Process(target=q.put, args=(5,)); p.start(); assert q.get() == 5; p.join()'" },
    Work { name: "python: asyncio with a server, a client and a subprocess", needs: "python3", text: "python3 -c 'import asyncio\nasync def serve(r, w): w.write(await r.read(2)); await w.drain(); w.close()\nasync def main():\n s = await asyncio.start_server(serve, \"127.0.0.1\", 0)\n r, w = await asyncio.open_connection(*s.sockets[0].getsockname()); w.write(b\"ok\"); assert await r.read() == b\"ok\"\n p = await asyncio.create_subprocess_exec(\"true\"); assert await p.wait() == 0\nasyncio.run(main())'" },
    Work { name: "python: threads", needs: "python3", text: "python3 -c 'import concurrent.futures as c\nassert sum(c.ThreadPoolExecutor(16).map(int, \"12345\")) == 15'" },
    Work { name: "python: a virtual environment", needs: "python3", text: "python3 -m venv --without-pip env && env/bin/python -c 'import sys; assert sys.prefix != sys.base_prefix'" },
    Work { name: "python: a database in a file", needs: "python3", text: "python3 -c 'import sqlite3\nd = sqlite3.connect(\"d.db\"); d.execute(\"pragma journal_mode=wal\"); d.execute(\"create table t (x)\"); d.commit()'" },
    Work { name: "job control of a shell", needs: "bash", text: "bash -c 'set -m; sleep 30 & kill -STOP %1; jobs | grep -q Stopped; kill -CONT %1; kill %1; wait %1; test $? = 143'" },
    Work { name: "a terminal of one's own", needs: "python3", text: "python3 -c 'import pty, os\nassert os.waitstatus_to_exitcode(pty.spawn([\"sh\", \"-c\", \"test -t 0 && stty size >/dev/null\"])) == 0' </dev/null" },
    Work { name: "a pair of sockets, and one with a path", needs: "python3", text: "python3 -c 'import socket\na, b = socket.socketpair(); a.send(b\"x\"); assert b.recv(1) == b\"x\"\ns = socket.socket(socket.AF_UNIX); s.bind(\"/tmp/own\"); s.listen(); socket.socket(socket.AF_UNIX).connect(\"/tmp/own\")'" },
    Work { name: "a server on the loopback of both families", needs: "python3", text: "python3 -c 'import socket\nfor f, a in (socket.AF_INET, \"127.0.0.1\"), (socket.AF_INET6, \"::1\"):\n s = socket.create_server((a, 0), family=f); socket.create_connection(s.getsockname()[:2])'" },
    Work { name: "tracing a process of one's own", needs: "strace", text: "strace -o log -e trace=execve true && grep execve log" },
    Work { name: "100,000 bytes of arguments", needs: "sh", text: "set -- $(seq 20000); /bin/echo \"$@\" | wc -c | grep 108894" },
    Work { name: "names in UTF-8, with blanks, newlines, a dash in front, and of no encoding", needs: "python3", text: "mkdir names && cd names && : >'grüße 日本' && : >'a\nb' && : >-rf && python3 -c 'open(b\"\\xff\\xfe\", \"w\")' && test $(ls -A --zero | tr -cd '\\0' | wc -c) = 4 && cd .. && rm -r names" },
    Work { name: "copies with all that files have, and archives", needs: "tar", text: "mkdir -p c/d && echo 1 >c/d/f && cp -a c c2 && tar cpf c.tar c && tar xpf c.tar -C /tmp && cmp /tmp/c/d/f c2/d/f" },
    Work { name: "files locked, mapped and watched", needs: "python3", text: "python3 -c 'import ctypes, fcntl, mmap\nf = open(\"m\", \"w+b\"); f.truncate(4096); fcntl.flock(f, fcntl.LOCK_EX); fcntl.lockf(f, fcntl.LOCK_EX); mmap.mmap(f.fileno(), 4096)[0] = 1\nc = ctypes.CDLL(None); i = c.inotify_init(); assert c.inotify_add_watch(i, b\".\", 2) > 0'" },
    Work { name: "the home and caches are there and can be written", needs: "sh", text: "mkdir -p ~/.cache/x && echo 1 >~/.cache/x/y && cat ~/.cache/x/y && test -w $TMPDIR" },
];

#[test]
fn what_people_build_with_works_inside() {
    let _turn = limit!(170);
    let mut pair = Pair::started(Host::shared());
    pair.with_workspace();
    let at = pair.workspace.clone();
    crate::outside::prepare(&pair, &at);
    let first = "git -c safe.directory=* -c user.name=x -c user.email=x@example.org";
    let text = format!(
        "cd {at}; {first} add file && {first} commit -qm first && chown -R {0}:{1} . && chmod -R g+rwX .",
        pair.host.service.name,
        pair.host.name("work"),
        at = at.display()
    );
    salaam_tests::ran::run(&["sh", "-c", &text]);
    let (mut worked, mut broke) = (0, Vec::new());
    for work in TABLE {
        let places = ["/usr/local/bin", "/usr/bin", "/bin"].map(|place| Path::new(place).join(work.needs));
        if !places.iter().any(|place| place.exists()) {
            println!("not installed for all: {}: {}", work.needs, work.name);
            continue;
        }
        let ran = pair.run(&["sh", "-c", work.text]);
        if ran.code == Some(0) { worked += 1 } else { broke.push(format!("{}: {ran}", work.name)) }
    }
    assert_eq!(broke, [] as [String; 0]);
    assert!(worked >= 20, "{worked} are too few");
    pair.assert_sound();
}
