"""The queries of a Grafana dashboard, run against a Prometheus.

    dashboard.py check DASHBOARD URL SECONDS
        Run each query until it returns data, for SECONDS at most. Ends in
        "N passed, N failed, N skipped".
    dashboard.py value URL QUERY
        Print the values of a query, sorted, in a line.
    dashboard.py draw DASHBOARD URL SECONDS FOLDER
        Write the last SECONDS of each panel to FOLDER/N.dat, and a script of
        gnuplot to FOLDER/plot.gp.
"""
import json
import os
import sys
import time
import urllib.parse
import urllib.request


def get(url, path, **arguments):
    query = urllib.parse.urlencode(arguments)
    try:
        with urllib.request.urlopen(url + path + "?" + query, timeout=60) as r:
            return json.load(r)["data"]
    except urllib.error.HTTPError as e:
        sys.exit("%s: %s" % (query, e.read().decode()))


def expand(expr):
    """What Grafana puts in for its variables: all queues, four scrapes."""
    return expr.replace("$queue", ".*").replace("$__rate_interval", "10s")


def targets(dashboard):
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]


def has_data(url, expr):
    result = get(url, "/api/v1/query", query=expand(expr))["result"]
    return [r for r in result if r["value"][1] not in ("NaN", "+Inf", "-Inf")]


def check(dashboard, url, seconds):
    end = time.monotonic() + float(seconds)
    passed = failed = 0
    left = list(targets(dashboard))
    while left and time.monotonic() < end:
        missing = [t for t in left if not has_data(url, t[1])]
        passed += len(left) - len(missing)
        left = missing
        time.sleep(0.2)
    for title, expr, _ in left:
        print("FAIL %s: no data: %s" % (title, expr))
        failed += 1
    for variable in dashboard["templating"]["list"]:
        if variable["type"] != "query":
            continue
        metric, label = variable["query"][len("label_values("):-1].split(", ")
        values = get(url, "/api/v1/label/%s/values" % label,
                     **{"match[]": metric})
        if values:
            passed += 1
        else:
            print("FAIL the variable %s has no values" % variable["name"])
            failed += 1
    print("%d passed, %d failed, 0 skipped" % (passed, failed))
    return 1 if failed or not passed else 0


def value(url, query):
    result = get(url, "/api/v1/query", query=query)["result"]
    print(" ".join(sorted(r["value"][1] for r in result)))
    return 0


def name(legend, labels):
    for key, text in labels.items():
        legend = legend.replace("{{%s}}" % key, text)
    return legend.replace("_", r"\\_")


def draw(dashboard, url, seconds, folder):
    now = time.time()
    panels = [p for p in dashboard["panels"] if p["type"] == "timeseries"]
    stats = [p for p in dashboard["panels"] if p["type"] == "stat"]
    told = []
    for panel in stats:
        result = has_data(url, panel["targets"][0]["expr"])
        unit = panel["fieldConfig"]["defaults"]["unit"]
        told.append("%s: %.0f%s" % (panel["title"],
                                    float(result[0]["value"][1]),
                                    " s" if unit == "s" else ""))
    rows = (len(panels) + 1) // 2
    out = ["set terminal svg size 1000,%d font 'sans-serif,11' background "
           "'white'" % (200 * rows + 40),
           "set output '%s/dashboard.svg'" % folder,
           "set multiplot layout %d,2 title '%s' font ',14'" % (
               rows, "     ".join(told)),
           "set grid ytics lc rgb '#dddddd'", "set border 3",
           "set xtics nomirror", "set ytics nomirror",
           "set key outside below horizontal font ',9' samplen 2",
           "set xrange [-%s:0]" % seconds, "set format x '%g s'"]
    n = 0
    for panel in panels:
        lines = []
        for target in panel["targets"]:
            data = get(url, "/api/v1/query_range", query=expand(target["expr"]),
                       start=now - float(seconds), end=now, step=3)["result"]
            for series in data:
                n += 1
                with open(os.path.join(folder, "%d.dat" % n), "w") as f:
                    for at, text in series["values"]:
                        f.write("%.1f %s\n" % (at - now, text))
                lines.append("'%s/%d.dat' with lines lw 2 title \"%s\"" % (
                    folder, n, name(target["legendFormat"], series["metric"])))
        out.append("set title \"%s\"" % panel["title"])
        if panel["fieldConfig"]["defaults"].get("min") == 0:
            out.append("set yrange [0:*<1e9]")
        else:
            out.append("set yrange [*:*]")
        out.append("plot " + ", ".join(lines))
    out.append("unset multiplot")
    with open(os.path.join(folder, "plot.gp"), "w") as f:
        f.write("\n".join(out) + "\n")
    return 0


def main(what, *arguments):
    if what == "value":
        return value(*arguments)
    with open(arguments[0]) as f:
        dashboard = json.load(f)
    return {"check": check, "draw": draw}[what](dashboard, *arguments[1:])


sys.exit(main(*sys.argv[1:]))
