"""The same load through `evenkeel route` and other routers, in turns; medians as one table."""

import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

from processes import Bars, Engines, cpu_seconds, load, route, table

SHORT = "--short" in sys.argv
ROUNDS = 1 if SHORT else 5
SECONDS = "8s" if SHORT else "20s"
BURSTS = "2" if SHORT else "3"
SATURATED = "3s" if SHORT else "10s"
SGLANG = os.environ["SGLANG"]

NGINX = """
user root; daemon off; worker_processes 2; pid {dir}/pid; error_log stderr crit;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;
  fastcgi_temp_path {dir}/f; uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  upstream engines {{ zone engines 1m; least_conn; {servers} keepalive 256; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096; keepalive_requests 10000000;
    location / {{ proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "";
                  proxy_buffering off; proxy_read_timeout 600s; }}
  }}
}}
"""

HAPROXY = """
global
  nbthread 2
  maxconn 8000
defaults
  mode http
  option http-no-delay
  timeout connect 5s
  timeout client 10m
  timeout server 10m
frontend all
  bind 127.0.0.1:{port}
  default_backend engines
backend engines
  balance leastconn
  http-reuse always
{servers}
"""


class Other:
    """A router that is not ours, at ports that were free a moment ago."""

    def __init__(self, command, engines, config=None):
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            port, metrics = one.getsockname()[1], other.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.dir = tempfile.TemporaryDirectory()
        file = os.path.join(self.dir.name, "config")
        if config:
            with open(file, "w") as to:
                to.write(config(port, self.dir.name))
        command = [word.format(port=port, metrics=metrics, file=file) for word in command]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ask = urllib.request.Request(self.url + "/generate", headers={"content-type": "application/json"},
                                     data=b'{"text": "ready?", "sampling_params": {"max_new_tokens": 1}}')
        for _ in range(600):
            if self.process.poll() is not None:
                break
            try:
                urllib.request.urlopen(ask, timeout=30).close()
                return
            except OSError:
                time.sleep(0.1)
        self.__exit__()
        sys.exit(f"{command[0]} does not get ready")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.dir.cleanup()

    def cpu_seconds(self):
        children = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True)
        return sum(cpu_seconds(pid) for pid in [self.process.pid, *children.stdout.split()])


def nginx(engines):
    servers = " ".join(f"server {engine.url.removeprefix('http://')};" for engine in engines)
    return Other(["nginx", "-c", "{file}", "-e", "stderr"], engines,
                 lambda port, dir: NGINX.format(port=port, dir=dir, servers=servers))


def haproxy(engines):
    servers = "\n".join(f"  server e{nth} {engine.url.removeprefix('http://')}" for nth, engine in enumerate(engines))
    return Other(["haproxy", "-db", "-f", "{file}"], engines,
                 lambda port, dir: HAPROXY.format(port=port, servers=servers))


def sglang(policy):
    return lambda engines: Other(
        [SGLANG, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", "{port}", "--policy", policy,
         "--log-level", "error", "--prometheus-port", "{metrics}", "--worker-urls", *(engine.url for engine in engines)],
        engines)


routers = {"evenkeel least_requests": lambda engines: route(*engines.of_router())}
if os.path.exists(SGLANG):
    routers["sglang round_robin"] = sglang("round_robin")
    routers["sglang power_of_two"] = sglang("power_of_two")
if shutil.which("nginx"):
    routers["nginx least_conn"] = nginx
if shutil.which("haproxy"):
    routers["haproxy leastconn"] = haproxy
if not SHORT and len(routers) == 1:
    print("nothing to compare with; --install gets SGLang's router, nginx and HAProxy")

seen = {name: [] for name in routers}
for nth in range(ROUNDS):
    for name, start in routers.items():
        with Engines(8) as engines, start(engines) as router:
            figures = load(router.url, "--seed", str(nth), "--duration", SECONDS, "--bursts", BURSTS, *engines.of_load())
        # No request takes long here: connections are kept, and the router has all it can do.
        with Engines(8, options=["--service", "lognormal:mean=1ms,cv=0"]) as engines, start(engines) as router:
            before = router.cpu_seconds()
            quick = load(router.url, "--duration", SATURATED, "--warm-up", "0s", "--think", "0s", "--clients", "64", "--whole")
            cpu_us = 1e6 * (router.cpu_seconds() - before) / quick["requests"]
        none = {"p50": float("nan"), "p99": float("nan")}
        added = figures["added_ms"] or none
        seen[name].append({
            "CV": figures["engines"]["outstanding_cv"],
            "burst of 64, most": max(burst["engines"]["max"] for burst in figures["bursts"]),
            "added p50 ms": added["p50"], "added p99 ms": added["p99"],
            "CPU us": cpu_us, "requests/s": quick["finished"] / float(SATURATED.removesuffix("s")),
            "errors": sum(figures["errors"].values()) + sum(quick["errors"].values()),
        })
        print(f"{nth + 1}/{ROUNDS} {name}: {seen[name][-1]}", file=sys.stderr)

columns = {"CV": "{:.3f}", "burst of 64, most": "{:.0f}", "added p50 ms": "{:.2f}", "added p99 ms": "{:.2f}",
           "CPU us": "{:.0f}", "requests/s": "{:.0f}", "errors": "{:.0f}"}
medians = {name: {column: statistics.median(run[column] for run in runs) for column in columns}
           for name, runs in seen.items()}
# The worst of all rounds, not the usual one.
for name, runs in seen.items():
    medians[name]["burst of 64, most"] = max(run["burst of 64, most"] for run in runs)
table([["", *columns], *([name, *(form.format(figures[column]) for column, form in columns.items())]
                         for name, figures in medians.items())])
bars = Bars()
ours = medians["evenkeel least_requests"]
for name, theirs in medians.items():
    if not SHORT and name.startswith("sglang"):
        for column in ("added p50 ms", "added p99 ms"):
            bars.hold(not ours[column] > theirs[column] + 0.3, f"{column} {ours[column]:.2f}, of {name} {theirs[column]:.2f}")
        bars.hold(ours["CPU us"] <= theirs["CPU us"], f"CPU us {ours['CPU us']:.0f}, of {name} {theirs['CPU us']:.0f}")
bars.hold(ours["errors"] == 0, "errors")
bars.exit()
