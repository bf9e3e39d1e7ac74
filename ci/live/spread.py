"""140 clients in a closed loop, then bursts, judged from the engines' side."""

import sys

from processes import Bars, Engines, TOPOLOGIES, load, route, table

SHORT = "--short" in sys.argv
LOAD = ["--duration", "20s" if SHORT else "60s"]
BURSTS = 2 if SHORT else 12
# Of the outstanding CV; a short run strays.
BARS = {"least_requests": 0.075 if SHORT else 0.055, "power_of_two:requests": 0.16 if SHORT else 0.12}

bars = Bars()
rows = [["", "policy", "loads", "CV", "busiest", "bursts of 64", "errors", ""]]
for topology, (count, dp_size) in TOPOLOGIES.items():
    for policy, bar in BARS.items():
        for late in ([2_000] if SHORT else [0, 2_000]):
            least = policy == "least_requests"
            if SHORT and not least and dp_size != 4:
                continue
            with Engines(count, dp_size) as engines:
                for engine in engines:
                    engine.control(loads_delay_ms=late)
                with route("--policy", policy, *engines.of_router()) as router:
                    bursts = ["--bursts", str(BURSTS)] if least else []
                    figures = load(router.url, *LOAD, *bursts, *engines.of_load())
            # Over what the policy chooses from: over engines alike, where there are several.
            spreads = [figures["ranks"]] + ([figures["engines"]] if count > 1 else [])
            worst = max(spread["outstanding_cv"] for spread in spreads)
            widths = [part["max"] - part["min"] for burst in figures["bursts"]
                      for part in (burst["ranks"], burst["engines"])]
            errors = sum(figures["errors"].values()) + sum(burst["errors"] for burst in figures["bursts"])
            name = f"{topology}, {policy}, loads {late} ms late"
            verdict = [
                bars.hold(worst <= bar, f"{name}: CV {worst:.4f} > {bar}"),
                bars.hold(max(widths, default=0) <= 1, f"{name}: a burst differs by {max(widths, default=0)}"),
                bars.hold(errors == 0, f"{name}: {figures['errors']}"),
                bars.hold(figures["at_engines"]["outstanding"] == 0, f"{name}: requests are left"),
            ]
            rows.append([topology, policy, f"{late / 1000:g} s late", f"{worst:.4f}",
                         f"{figures['ranks']['busiest'] / figures['ranks']['mean']:.2f} x",
                         f"max - min <= {max(widths)}" if widths else "", errors, " ".join(filter(None, verdict))])
            print(" ".join(map(str, rows[-1])), file=sys.stderr)
table(rows)
bars.exit()
