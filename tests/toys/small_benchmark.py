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
patience = 2
validation = 0.2
batch-size = 32
feature-dim = 16
backend = "local"
measure = ["global-accuracy"]
keep = "current"
checkpoint-every = "off"

[columns.equal]
label = "equal nets"
models = "cnn4"

[columns.unequal]
label = "two nets"
models = "htcnn8"

[tuning]
rounds = 2
rates = [0.05, 0.2]
factors = [10.0]
rate-factors = [2.0]
seeds = [0, 1]

[tuning.weights]
fedproto = { lambda = 0.1 }
"""
