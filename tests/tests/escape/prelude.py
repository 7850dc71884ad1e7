import ctypes, errno, fcntl, glob, json, mmap, os, pty, resource, shutil, signal, socket, stat, struct, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def fail(): raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def call(*words):
    done = libc.syscall(*words)
    if done < 0: fail()
    return done
def numbers(*all): return ctypes.create_string_buffer(struct.pack('Q' * len(all), *all))
def sh(text): subprocess.run(['sh', '-c', text], check=True, capture_output=True)
def link(to, at):
    if not os.path.lexists(at): os.symlink(to, at)
def made(n):
    open('left' + n, 'w').close()
def setuid(name, bit=stat.S_ISUID):
    if not os.stat(WS + '/' + name).st_mode & bit: raise OSError('no such bit')
def trace(pid):
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    if libc.ptrace(0x4206, pid, 0, 0) < 0: fail()
    libc.ptrace(17, pid, 0, 0)
def vm_read(pid):
    mine = ctypes.create_string_buffer(8)
    local = numbers(ctypes.addressof(mine), 8)
    # The first page of the vdso or the program is somewhere else in each; where nothing may be read at all
    # the error is EPERM or ESRCH, and EFAULT where it may.
    if libc.syscall(310, pid, local, 1, numbers(4096, 8), 1, 0) < 0 and ctypes.get_errno() != errno.EFAULT: fail()
def by_handle():
    handle = ctypes.create_string_buffer(struct.pack('I', 128) + bytes(140))
    mount = ctypes.create_string_buffer(4)
    call(303, -100, b'/usr', handle, mount, 0)
    call(304, os.open('/usr', 0), handle, 0)
def swaps():
    good, way = 'good' + N, 'swap' + N
    open(good, 'w').write('good')
    if os.fork() == 0:
        for round in range(500):
            os.symlink([good, SECRET][round % 2], way + 'new'); os.rename(way + 'new', way)
        os._exit(0)
    for round in range(20000):
        try:
            if 'secret' in open(way).read(): return
        except FileNotFoundError: pass
    raise OSError(errno.ENOENT, 'never')
def i386():
    # mov eax, 20 (getpid); int 0x80; ret
    code = mmap.mmap(-1, 4096, prot=7)
    code.write(b'\xb8\x14\0\0\0\xcd\x80\xc3')
    pid = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
    if pid != os.getpid(): raise OSError(errno.ENOSYS, 'no 32-bit calls')
def types(request, argument):
    # On a terminal of its own making.
    pid, fd = pty.fork()
    if pid == 0:
        try: fcntl.ioctl(0, request, argument)
        except OSError as e: os._exit(e.errno)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code: raise OSError(code, os.strerror(code))
def ask(family, host, port):
    s = socket.socket(family, socket.SOCK_DGRAM); s.settimeout(1)
    s.connect((host, port)); s.send(b'x'); s.recv(1)
def netlink():
    # RTM_NEWADDR 127.9.9.9/8 on interface 1
    body = struct.pack('BBBBi', 2, 8, 0, 0, 1) + struct.pack('HH4s', 8, 2, bytes([127, 9, 9, 9]))
    s = socket.socket(16, socket.SOCK_RAW, 0)
    s.send(struct.pack('IHHII', 16 + len(body), 20, 0x605, 1, 0) + body)
    code = struct.unpack('i', s.recv(4096)[16:20])[0]
    if code: raise OSError(-code, os.strerror(-code))
def hook(git, mark):
    os.makedirs(git + '/hooks', exist_ok=True)
    for name in 'pre-commit', 'post-index-change', 'reference-transaction':
        if os.path.lexists(f'{git}/hooks/{name}'): os.unlink(f'{git}/hooks/{name}')
        open(f'{git}/hooks/{name}', 'w').write(f'#!/bin/sh\ntouch {mark} || :\n'); os.chmod(f'{git}/hooks/{name}', 0o775)
def config(git, mark, name='config'):
    open(f'{git}/{name}', 'a').write(f'[core]\nfsmonitor = "touch {mark}; false"\n')
def nested(at): sh(f'git init -q {at}; cd {at}; : >f0; git add f0')
def git_runs(at, *words):
    # As the service user: what git does there, and whether that touched the mark.
    for words in [words] if words else [('status',), ('add', '.'), ('commit', '-q', '--allow-empty', '-m', 'x')]:
        git = ['git', '-c', 'safe.directory=*', '-c', 'user.name=x', '-c', 'user.email=x@example.org', '-C', at, *words]
        subprocess.run(['setpriv', '--reuid', SUID, '--regid', SGID, '--init-groups', '--', *git], capture_output=True, timeout=20)
    os.unlink(MARK)
def attempt(n, code, ws):
    global N, WS, D, MARK
    N, WS, D, MARK = str(n), ws, f'{ws}/d{n}', f'{DIR}/mark{n}'
    if (p := os.fork()) == 0:
        signal.alarm(20)
        said = 'done'
        try:
            os.chdir(ws)
            # As root, each in a mount namespace of its own: some attacks change it.
            if os.geteuid() == 0: libc.unshare(0x20000)
            exec(code, globals())
        except BaseException as e:
            said = f'{type(e).__name__} {e}'.replace('\n', ' ')[:200]
        os.write(1, f'@{n} {said}\n'.encode())
        os._exit(0)
    status = os.waitpid(p, 0)[1]
    if os.WIFSIGNALED(status): os.write(1, f'@{n} killed by {os.WTERMSIG(status)} Error\n'.encode())
