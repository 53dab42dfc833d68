"""The benches: table.py (rows, ratios, verdicts), tools.py (servers, clients, limits), peers.py (what we
are measured against), and one module a subject."""
