"""The file of a small benchmark: two settings, and runs of a second."""

from __future__ import annotations

SMALL = """
title = "A small benchmark"
paper = "nobody"
place = "Benchmark"
kind = "benchmark"
chosen = ["small"]

[options]
dataset = "few"
partition = "dirichlet"
clients = 3
rounds = 3
validation = 0.2
batch-size = 32
feature-dim = 16
backend = "local"
keep = "current"
checkpoint-every = "off"

[columns.equal]
label = "n = 10"
group = "equal nets"
models = "cnn4"

[columns.unequal]
label = "n = 10"
group = "two nets"
models = "htcnn8"

[tuning]
search-seeds = [100]
seeds = [0, 1]
rates = [0.05, 0.2]
steps = 0
factors = [0.0, 10.0]

[tuning.weights]
fedproto = { lambda = 0.1 }
"""
