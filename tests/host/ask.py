#!/usr/bin/python3
"""Sends requests to a socket as whoever runs it: ask.py SOCKET

One request a line on standard input, `METHOD PATH BODY`; for each, one line: the status and the id of the error in the
answer, or the errno's name where there is no answer.
"""

import errno
import json
import socket
import sys


def ask(path, method, target, body):
    """Status and error id of one answer; the rest of a stream that goes on is not waited for."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.settimeout(30)
        stream.connect(path)
        head = f"{method} {target} HTTP/1.1\r\nHost: s\r\nConnection: close\r\nContent-Type: application/json\r\n"
        stream.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        answer = b""
        while piece := stream.recv(65536):
            answer += piece
    start, _, text = answer.partition(b"\r\n\r\n")
    try:
        found = json.loads(text)["error"]["id"]
    except (ValueError, KeyError, TypeError):
        found = "-"
    return f"{start.split()[1].decode()} {found}"


for line in sys.stdin:
    try:
        print(ask(sys.argv[1], *line.rstrip("\n").split(" ", 2)))
    except OSError as error:
        print(errno.errorcode.get(error.errno, "EIO"))
