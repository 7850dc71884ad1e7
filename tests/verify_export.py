#!/usr/bin/env python3
"""verify_export.py FILE: verifies an export of Salaam's journal with nothing but Python's standard library."""
import hashlib, json, sys
prev, seq = "0" * 64, 0
for line in open(sys.argv[1], "rb"):
    seq += 1
    try:
        event = json.loads(line, parse_float=lambda text: sys.exit(f"event {seq} is damaged: {text} is a float"))
        canonical = lambda value: json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        whole = canonical(event) == line.removesuffix(b"\n") and (event["seq"], event["prev"]) == (seq, prev)
        prev = event.pop("hash")
        whole = whole and hashlib.sha256(canonical(event)).hexdigest() == prev
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        sys.exit(f"event {seq} is damaged or missing")
print(f"{seq} events, the last with hash {prev}")
