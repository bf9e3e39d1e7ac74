"""Engines, routers and load, as processes on loopback that end with the script."""

import json
import os
import subprocess
import sys
import urllib.request

EVENKEEL = os.environ["EVENKEEL"]
LOGNORMAL = ["--service", "lognormal:mean=600ms,cv=1.5"]
TOPOLOGIES = {"8 engines": (8, 1), "1 engine of 8 ranks": (1, 8), "2 engines of 4 ranks": (2, 4)}


class Process:
    """A process of evenkeel that prints its URL. It ends with its standard input."""

    def __init__(self, *arguments, log=None):
        self.log = open(log, "w") if log else None
        self.process = subprocess.Popen([EVENKEEL, *arguments, "--ends-with-stdin"], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log)
        self.pid = self.process.pid
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            sys.exit(f"{' '.join(arguments)} does not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        self.process.kill()
        self.process.communicate()
        if self.log:
            self.log.close()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            return json.load(response)

    def control(self, **faults):
        request = urllib.request.Request(self.url + "/control", json.dumps(faults).encode())
        urllib.request.urlopen(request, timeout=30).close()

    def cpu_seconds(self):
        return cpu_seconds(self.pid)


def cpu_seconds(pid):
    """Of a process: utime and stime."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Engines(list):
    """Of the same dp_size."""

    def __init__(self, count, dp_size=1, options=LOGNORMAL):
        self.dp_size = dp_size
        super().__init__(Process("mock-engine", "--dp-size", str(dp_size), *options) for _ in range(count))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for engine in self:
            engine.end()

    def of_router(self):
        return [word for engine in self for word in ("--engine", f"{engine.url},dp_size={self.dp_size}")]

    def of_load(self):
        return [word for engine in self for word in ("--engine", engine.url)]


def route(*options, **more):
    return Process("route", "--listen", "127.0.0.1:0", "--log-level", "warn", *options, **more)


def start_load(url, *options):
    return subprocess.Popen([EVENKEEL, "load", url, "--json", *options], stdout=subprocess.PIPE, text=True)


def load(url, *options):
    return ended(start_load(url, *options))


def ended(process):
    out, _ = process.communicate()
    if process.returncode:
        sys.exit("evenkeel load failed")
    return json.loads(out)


def table(rows):
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        print("  ".join(cells))


class Bars:
    """What must hold. All are looked at, then the script fails if one is missed."""

    def __init__(self):
        self.missed = []

    def hold(self, holds, text):
        if not holds:
            self.missed.append(text)
        return "" if holds else "MISSED"

    def exit(self):
        for text in self.missed:
            print(f"missed: {text}")
        sys.exit(1 if self.missed else 0)
