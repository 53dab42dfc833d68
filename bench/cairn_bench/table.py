"""Samples, the table they are printed as, and the verdict."""
import statistics

BENCHES = {}


class Bench:
    def __init__(self, name, claim, function, pairs):
        self.name, self.claim, self.function, self.pairs = name, claim, function, pairs

    def run(self, pairs=0):
        print(f"# {self.name}: {self.claim}", flush=True)
        verdicts = self.function(pairs or self.pairs)
        return all([v.report() for v in verdicts])


def bench(name, claim, pairs=5):
    def keep(function):
        BENCHES[name] = Bench(name, claim, function, pairs)
        return function
    return keep


class Verdict:
    """One bar. at_least: the ratio must reach it; else it must stay below it."""

    def __init__(self, name, ratio, bar, at_least=True):
        self.name, self.ratio, self.bar, self.at_least = name, ratio, bar, at_least

    def report(self):
        good = self.ratio >= self.bar if self.at_least else self.ratio <= self.bar
        print(f"{self.name} ratio={self.ratio:.3f} bar={'' if self.at_least else '<='}{self.bar} "
              f"{'ok' if good else 'short'}", flush=True)
        return good


class Table:
    def __init__(self, unit=""):
        self.rows, self.unit = {}, unit

    def add(self, row, value):
        self.rows.setdefault(row, []).append(value)

    def median(self, row):
        return statistics.median(self.rows[row])

    def ratio(self, ours, peer):
        """Median of the pairwise ratios."""
        return statistics.median(a / b for a, b in zip(self.rows[ours], self.rows[peer]))

    def show(self):
        wide = max(len(r) for r in self.rows)
        print(f"{'':{wide}s} {'median':>10s} {'min':>10s} {'max':>10s}   n   {self.unit}")
        for row, values in self.rows.items():
            print(f"{row:{wide}s} {statistics.median(values):10.3f} {min(values):10.3f} {max(values):10.3f} "
                  f"{len(values):3d}")


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p / 100 * len(values)))]
