"""Test that commands and options which errors advise run: each is typed as the error prints it."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import safetensors.torch
import torchvision
from advised import advices, commands, followed, spoken
from PIL import Image
from typer.testing import CliRunner

import protofl as pf
from protofl_cli.app import app

IMAGES = "run fedproto --models cnn4 --batch-size 64 --feature-dim 16 --dataset FEW "
TABLE = "run fedproto --models mlp --set models.only=mlp1 --lr 0.01 "
SICK = TABLE + "--set dataset.label=sick --dataset "
QUICK = (("--clients", "3"), ("--rounds", "2"), ("--backend", "local"))
"""Options that runs get which lack them."""

OWN = {"digits-domains", "pfllib:pickles"}
"""Data that divide into clients of their own."""

GROUPED = "--dataset npz:grouped.npz --set dataset.group=who "
PICKLES = "--dataset pfllib:pickles --set dataset.trust_pickle=true "
RARE = "--dataset npz:rare.npz --clients 4 --public 80 --seed 3 --partition "
BUFFERED = "--schedule buffered --devices tiers "
STYLE = "run fedktl --models cnn4 --feature-dim 16 --batch-size 64 --dataset "
PARTS = SICK + "csv:parts.csv --set dataset.test=part --set dataset.client="
SWEEP = "sweep fedproto --models cnn4 --dataset FEW --feature-dim 16 "
SWEPT = SWEEP + "--grid lr=0.1,0.2 --out swept"


class Case(NamedTuple):
    """A refusal.

    Attributes:
        says: A part of the advice in the source, ``{}`` for each value.
        typed: The refused command.
        fill: {placeholder, or option that has no value in the advice: value}.
        clause: Number of the alternative that is followed.
        repeated: True if the advice is for the run ``done``: the run is repeated with it, and
            the command typed for the new run.
    """

    says: str
    typed: str
    fill: dict[str, str] = {}
    clause: int = 0
    repeated: bool = False


def of(method):
    """Return the start of a run of another method on images."""
    return IMAGES.replace("fedproto", method)


def images(says, options, clause=0, **fill):
    names = {("--" + k[2:].replace("_", "-") if k.startswith("__") else k): v
             for k, v in fill.items()}  # fmt: skip
    return Case(says, IMAGES + options, names, clause)


RUNS = [
    images("use --public {} or less", "--public 1000"),
    images("give fewer, or a share: --subset 1/2", "--subset 1000", 1),
    images("give at least --subset {}", "--subset 5 --clients 1"),
    images("take more --rounds", "--join-round 3 --rounds 1", __rounds="4"),
    images("take --fine-tune 0", "--unseen 1 --patience 3 --fine-tune 2"),
    images("take --fine-tune 0", "--unseen 1 --patience 3 --fine-tune 2", 1),
    images("lower it, or raise --participation", "--min-clients 3 --participation 0.4", 1,
           __participation="1"),
    images("take --min-clients 1", "--min-clients 0 --eval-clients participants"),
    images("take --min-clients 1", "--min-clients 0 --eval-clients participants", 1),
    images("choose a device model: --devices NAME", "--deadline 500", NAME="tiers"),
    images("raise it, lower --participation", "--over-select 0.5 --devices tiers",
           __participation="0.4"),
    images("hold some out (--validation 0.1)", "--record-predictions validation"),
    images("choose devices for the clients: --devices NAME", "--schedule buffered", NAME="tiers"),
    images("choose devices for the clients: --devices NAME", "--schedule buffered", 1),
    images("add --malicious 0.2, or drop", "--with sign-flip --clients 5"),
    images("add --malicious 0.2, or drop", "--with sign-flip", 1),
    images("add an attack: --with sign-flip", "--malicious 0.4"),
    images("list {}, or give --clients {}", "--architectures cnn4,cnn4", 1),
    images("take --clients {}, or leave --participants-from", "--participants-from done "
           "--clients 4"),
    images("take --clients {}, or leave --participants-from", "--participants-from done "
           "--clients 4", 1),
    images("take fewer --rounds", "--participants-from done --rounds 9", __rounds="2"),
    Case("give the same --unseen and --join-round", IMAGES + "--participants-from done "
         "--unseen 1", {" and --join-round as": "", "--unseen": "0"}),
    images("choose one with --devices", "--set devices.spread=1", __devices="tiers"),
    images("use --device cpu", "--device cuda:0"),
    images("use --device cuda, or leave --precision out", "--precision tf32", 1),
    images("name rounds up to {}", "--keep-weights rounds:3", 1, __rounds="4"),
    images("take every:{} or less", "--keep-weights every:4", 2, __rounds="4"),
    images("leave --out and --resume out", "--reuse runs --out x"),
    images("choose another folder, or continue", "--out done", folder="folder --out new"),
    images("choose another folder with --out", "--out t.csv/x", __out="new"),
    images("give a file: --events FILE", "--json --events -", FILE="ev.jsonl"),
    Case("--set ranks=4, or flora, flexlora or raflora", of("fedex-lora") + "--set ranks=2,4",
         {"ranks=4,": "ranks=4"}, 1),
    images("see: protofl show {}", "--set fedproto.lambad=1"),
    images("see: protofl show {}", "--set fedproto.lambda=much"),
    Case("give --public N, or leave the option out", of("fedmd")
         + "--public none", {"N": "20"}),
    images("give the same --models", "--init done --feature-dim 32", __feature_dim="16",
           __models="cnn4"),
    images("choose one of them with --models", "--models mlp", __models="cnn4"),
    images("use at most {} clients (--clients)", "--clients 90", __clients="3"),
    images("write for example: --models depths", "--models depths:nosuch"),
    images("write for example: --models widths", "--models widths:nosuch"),
    images("write for example: --models torchvision", "--models torchvision:resnet18,,"),
    images("or leave keep_features out", "--models torchvision:shufflenet_v2_x0_5 --set "
           "models.keep_features=true --set models.projection=false --drop align "
           "--set models.weights=shufflenet.safetensors"),
    images("give --set models.weights=default", "--models torchvision:shufflenet_v2_x0_5 --set "
           "models.freeze=1 --set models.weights=none", default="shufflenet.safetensors"),
    images("choose --dataset digits-domains", "--partition domain", ),
    images("give it as --dataset {}:PATH", "--dataset folder:no", PATH="pictures"),
    images("give it as --dataset npz:PATH", "--dataset npz:no.npz", PATH="few.npz"),
    images("give public samples of their own", GROUPED + "--public 20", PATH="few.npz"),
    images("give public samples of their own", PICKLES + "--public 20", PATH="few.npz"),
    images("leave --train-size out", PICKLES + "--train-size 0.5"),
    images("give a share: --train-size 0.5", GROUPED + "--train-size 10"),
    images("give --train-size {} or less", "--train-size 60"),
    images("give --train-size {} or less", "--train-size 60", 2, __clients="1"),
    images("give a number: --feature-dim {}", "--feature-dim native"),
    images("give --feature-dim {} or more", "--models depths:cnn4 --feature-dim 2"),
    images("shards_per_client={}", "--partition shards --set partition.shards_per_client=10 "
           "--set partition.shard_size=4"),
    images("hold out fewer public samples: lower --public", RARE + "domain --set "
           "partition.min_samples=2", __public="5"),
    images("hold out fewer public samples: lower --public", RARE + "column:domain", __public="5"),
    images("put images in PATH/", "--dataset domains:hollow", 1, PATH="pictures"),
    images("if the first are parts", "--dataset folder:levels --clients 2", 1),
    images("devices.assign=random", "--devices trace:devices.csv"),
    images("devices.assign=random", "--devices trace:devices.csv", 1),
    images("take --sampling uniform", BUFFERED + "--sampling list:lists.txt"),
    Case("take --schedule rounds", of("centralised") + BUFFERED),
    Case("leave it out, or take --schedule rounds", of("fedavg")
         + BUFFERED + "--with quantise", {"leave it": "leave --with"}),
    Case("leave it out, or take --schedule rounds", of("fedavg")
         + BUFFERED + "--with quantise", clause=1),
    Case("observe prototypes, or give a number", "run local --models htfe8 --dataset FEW "
         "--feature-dim native --observe features", {"--feature-dim": "16"}, 1),
    Case("give --feature-dim {}, or another", of("fedtsp")
         + "--set encoder=fixed.py:Fixed"),
    Case("choose another with --generator", STYLE + "npz:twelve.npz --set conditional=true",
         {"--generator": "tiny-style --set generator.weights=twelve.safetensors"}),
    Case("choose another with --generator", STYLE + "npz:twelve.npz --set conditional=true",
         {"conditional=true": "--set conditional"}, 1),
    Case("protofl generator train DATASET", STYLE + "FEW --set generator.weights=t.csv",
         {"DATASET": "FEW --set epochs=1 --set steps=1"}),
    Case("protofl generator train DATASET", STYLE + "FEW --set generator.weights=t.csv",
         {"weights": "--set generator.weights"}, 1),
    Case("--set models.only=NET", "run fedproto --models htfe-txt-5-2 --feature-dim 30 --dataset "
         "npz:texts.npz --set dataset.kind=tokens", {"NET": "transformer-h1-l4"}, 1),
    Case("--feature-dim {} or more works", of("alignfed") + "--feature-dim 2",
         clause=1),
    Case("works (--models htfe8)", of("fedet") + "--models htfe8-htc4 --public 20", clause=1),
    Case("--set auxiliary_dim={}", of("fedmrl") + "--set auxiliary_dim=32",
         clause=1),
    Case("--models widths:resnet18@", of("heterofl") + "--models htcnn8", clause=1),
    Case("; --optimizer sgd", of("scaffold") + "--momentum 0.9", clause=1),
    Case("; --optimizer sgd", of("scaffold") + "--momentum 0.9", clause=2),
    Case("{}; or --set scope=architecture", "run fedavg --models mlp --dataset csv:t.csv --set "
         "dataset.label=sick",
         clause=-3),
    Case("{}; or --set scope=architecture", "run fedavg --models mlp --dataset csv:t.csv --set "
         "dataset.label=sick",
         clause=-1),
    images("others have one provider", "--add inference=fedtgp"),
    images("take it out of --block", "--block fedproto", **{"take it out of": "leave"}),
]  # fmt: skip
"""Runs on images."""

TABLES = [
    Case("use --clients {}, or leave it out", SICK + "csv:t.csv --set dataset.client=site "
         "--clients 9"),
    Case("write {}:{} --set dataset.label=COLUMN", TABLE + "--dataset t.csv",
         {"write ": "--dataset ", "COLUMN": "sick"}),
    Case("give it as --dataset {}:FILE", SICK + "csv:no.csv", {"FILE": "t.csv"}),
    Case("give it as --dataset {}:FILE", SICK + "parquet:t.csv", {"FILE": "t.csv"}),
    Case("name {}: --set dataset.label=COLUMN", TABLE + "--dataset csv:t.csv",
         {"COLUMN": "sick"}),
    Case("--set dataset.decimal=, (if", SICK + "csv:comma.csv --set dataset.separator=;"),
    Case("say what separates them", SICK + "csv:comma.csv --set dataset.separator=| "
         "--set dataset.decimal=,", {"…": ";"}),
    Case("give each row a label", SICK + "csv:blank.csv", clause=1),
    Case("divide the numbers into classes", TABLE.replace("proto", "avg") + "--dataset csv:t.csv "
         "--set dataset.label=dose", clause=1),
    Case("correct the column, or give a share: --set dataset.test=0.25",
         SICK + "csv:t.csv --set dataset.test=site", clause=1),
    Case("say its encoding, for example", SICK + "csv:latin.csv"),
    Case("say its encoding: --set dataset.encoding=utf-16", SICK + "csv:wide.csv"),
    Case("add --set dataset.task=multilabel", TABLE + "--dataset csv:t.csv --set "
         "dataset.label=many --set 'dataset.label_separator=;'"),
    Case("read them as 0 or 1, or leave the rows out", TABLE + "--dataset csv:multi.csv "
         "--set dataset.label=a,b --set dataset.task=multilabel", clause=2),
    Case("--set dataset.statistics=global", SICK + "csv:t.csv --public 20"),
    Case("dataset.group out, or take a method", SICK + "csv:t.csv --set dataset.group=site "
         "--set dataset.statistics=global --public 20"),
    Case("give a number: --public N holds N", SICK + "csv:t.csv --public npz:t.npz "
         "--set dataset.statistics=global",
         {"N": "20"}),
    Case("if you trust where it comes from: --set dataset.trust_pickle",
         IMAGES + "--dataset pfllib:pickles"),
    Case("give the folder that holds train/ and test/", IMAGES + "--dataset pfllib:no",
         {"DIR": "pickles --set dataset.trust_pickle=true"}),
    Case("tests them as unseen", PARTS + "ward"),
    Case("partition.test=pooled splits", PARTS + "room"),
    Case("partition.test=pooled splits", PARTS + "room", clause=1),
    Case("leave --set dataset.test out", PARTS + "site --set dataset.group=dose"),
    Case("leave --set dataset.test out", PARTS + "site --set dataset.group=dose", clause=1),
    Case("leave --train-size out", PARTS + "site --train-size 0.5"),
    Case("correct the column, or name another one: --set dataset.label", TABLE.replace("proto",
         "avg") + "--dataset csv:t.csv --set dataset.label=site --set dataset.task=regression",
         {"COLUMN": "dose"}, 1),
    Case("--set dataset.task=classification", SICK + "csv:t.csv --set "
         "dataset.task=language-model"),
    Case("set dataset.image", SICK + "csv:t.csv --set dataset.side=8",
         {"leave it": "leave --set dataset.side"}, 1),
    Case("; or read them as 0 or 1", TABLE.replace("proto", "avg") + "--dataset csv:unsaid.csv "
         "--set dataset.label=a,b --set dataset.task=multilabel", clause=2),
    Case("dataset.impute=median+flag", SICK + "csv:holes.csv --set dataset.impute=drop"),
    Case("dataset.impute=median+flag", SICK + "csv:half.csv --set dataset.impute=drop"),
]  # fmt: skip
"""Runs on files of tables."""

OTHERS = [
    Case("protofl run {} --models GROUP", "run fedproto", {"GROUP": "cnn4 --dataset FEW "
         "--feature-dim 16"}),
    Case("see: protofl list-plugins --kind {}", "run fedproto"),
    Case("see: protofl run --help", "run fedproto --models cnn4 --lr fast"),
    Case("see: protofl run --help", "run --config wrong.json"),
    Case("write --config {}", "run done/config.json", {"write ": "protofl run --out new "}),
    Case("give the folder of an interrupted run with --out", "run --resume --out no",
         {"--out": "done"}),
    Case("see: protofl runs list", "runs show nosuch"),
    Case("add --force", "runs rm copy"),
    Case("see: protofl list-plugins", "show nosuch"),
    Case("see: protofl list-plugins", "check nosuch/nosuch"),
    Case("write --kind KIND", "new-plugin abc --kind nosuch", {"KIND": "method"}),
    Case("choose another one with --out DIR", "new-plugin taken --out .", {"DIR": "elsewhere"}),
    Case("try: protofl new-plugin {}", "new-plugin My_Method"),
    Case("leave protofl out: protofl new-plugin {}", "new-plugin protofl-abc"),
    Case("choose another name; taken names: protofl list-plugins", "new-plugin fedproto",
         clause=1),
    Case("see protofl plot --help", "plot barz done"),
    Case("see: protofl reproduce --list", "reproduce"),
    Case("see: protofl reproduce --list; or give", "reproduce nosuch"),
    Case("see: protofl reproduce --list benchmark", "reproduce fedtgp/table-10 --add fedproto"),
    Case("choose another file with {}, or --force", "export done there.safetensors", clause=1),
    Case("run it with --validation 0.05, or read --figure final",
         "compare done --figure validation", clause=1),
    Case("write: --label {}", "compare done --label nothing"),
    Case("write --label 'GROUP=TEXT'", "compare done --label nosuch=x", {"GROUP": "fedproto",
         "TEXT": "x"}),
    Case("record it with --metrics confusion", "plot confusion done", repeated=True),
    Case("record it with --metrics confusion", "plot confusion done", clause=1, repeated=True),
    Case("run it with --observe {}", "plot margins done", repeated=True),
    Case("run it with --observe prototypes,features", "plot features done", repeated=True),
    Case("train again with --keep-weights", "export done a.safetensors --which 1",
         {"rounds:R,R,…": "rounds:1"}, repeated=True),
    Case("leave it out; --title changes", "report done --label fedproto=x --out r.html",
         {"leave it": "leave --label"}),
    Case("choose another folder with --out", "publish done --out t.csv", {"--out": "public"}),
    Case("choose another folder with --out, or --force", "publish done --out published",
         clause=1),
    Case("see: protofl runs list {}", "verify published --run nosuch"),
    Case("if you trust where it comes from: --trust-pickle", "score there.pt2 some.npy"),
    Case("write --grid KEY=VALUE,VALUE", SWEEP, {"KEY=VALUE,VALUE": "lr=0.1,0.2"}),
    Case("leave --hold-split out", SWEEP + "--grid lr=0.1,0.2 --hold-split --trials 2"),
    Case("use fewer values or trials, or --most {}", SWEEP + "--grid lr=0.1,0.2 --most 1",
         clause=2),
    Case("compare points by --figure {}", SWEEP + "--grid lr=0.1,0.2 --figure final-server"),
    Case("--dataset {}={}:PATH; or check", "verify lost", {"PATH": "few.npz"}),
    Case("leave it out; --plan trains nothing", "run --config done/config.json --dry-run",
         {"leave it": "leave --dry-run"}),
    Case("choose another --out DIR", "new-plugin fresh --out t.csv/x", {"DIR": "elsewhere"}),
    Case("write it again: protofl export RUN {}", "score bad.pt2 some.npy --trust-pickle",
         {"RUN": "done"}),
    Case("protofl run --resume --out {}; or", "publish cut --out new"),
    Case("protofl run --resume --out {}", "python cut result"),
    Case("repeat the run with --record-predictions", "python done predictions()"),
    Case("--config {}/config.json --record-uploads", "python done uploads()"),
    Case("wait for the first round, or resume", "plot curve early", {"FOLDER": "early"}, 1),
    Case("run it with --validation 0.1", "python done predictions(which=\\'validation\\')",
         {"0.1": "0.1 --record-predictions validation"}, repeated=True),
    Case("give --trials N for N runs", SWEEP + "--grid seed=1,2",
         {"N for": "2 --grid lr=0.1,0.2 for", "--seed": "1"}),
    Case("once, beside --grid", SWEEP + "--backend process --grid backend.pin=false,true",
         {"…": "false", "--grid": "lr=0.1,0.2"}),
    Case("with --set {}=N from the beginning", "run --resume --out cosine --rounds 5",
         {"N": "5 --lr-schedule cosine"}, repeated=True),
    Case("write --grid run", "sweep fedkd --models cnn4 --dataset FEW --grid clip=1,2",
         {"…": "1,2"}),
    Case("write --grid run", "sweep fedkd --models cnn4 --dataset FEW --grid clip=1,2",
         {"…": "1,2"}, 1),
    Case("write --grid NAME", SWEEP.replace("fedproto ", "") + "--grid method=fedproto,fedtgp "
         "--grid lambda=0.1,1", {"NAME.KEY=…": "fedproto.lambda=0.1,1 --grid method=fedproto"}),
    Case("resume it: protofl sweep", SWEPT + " && " + SWEPT),
]  # fmt: skip
"""Other commands."""


ELSEWHERE = {
    "it is a form of what is typed, or a page to read": (
        "a data set has x_train",
        "--optimizer takes",
        "--use takes HOOK",
        "--drop takes a term",
        "see --keep",
        "NAME in --set NAME.KEY=VALUE",
        "with --resume write --set",
        "timing.max_staleness=N drops",
        "not repeatable on its GPU",
        "in the other's place with --use",
        "write --grid",
        "write all of its values in one --grid",
        "write --set {}",
        "with --grid method=",
        "--samples applies to",
        "protofl compare shows",
        "reads this many",
        "attacks of protofl leak",
        "--file {}=PATH",
        "published data with --dataset",
        "add the column; protofl score",
        "write --out FILE.md",
        "choose another file; only",
        "give the --out folder of protofl publish",
        "give the --out folder of the sweep",
    ),
    "the user has to change a method, a class or an installation first": (
        "write needs_public",
        "write it into a file of its own",
        "block the {}",
        "lower --lr",
        "say which kind it is",
        "see: protofl check command/",
        "install its package, then",
        "drop it: --drop local_loss",
        "give it to a method",
        "name it after: --with",
        "give --clients",
        "--trust-code {}",
        "to allow it: --set {}",
        "hold samples of the data",
    ),
    "it needs nodes of a deployment": (
        "another backend",
        "leave it out; a node can export",
        "export one there",
        "raise --upload-limit",
    ),
    "commands refuse such data earlier": ("language-model, with", "--set etf=false needs none"),
    "methods of protofl do not combine to it": ("it from the method that reads it",),
    "it trains for minutes": ("leave --plan out;",),
    "it needs weights of a Vision Transformer, of 330 MB": ("models.min_side=224",),
    "a disk is full or read-only": ("with --data-dir",),
    "it needs a network": (
        "(--data-dir takes another",
        "; or save its arrays elsewhere",
        "without internet",
        "where there is internet",
        "dataset.revision",
        "dataset.configuration",
        "git clone",
        "download one from the authors",
        "generator.trust_pickle",
        "give --set models.weights=FILE",
    ),
    "it needs a GPU or several": (
        "use --engine {}",
        "use --backend process, or name one GPU",
        "use --device cuda",
        "two actors on a GPU",
    ),
    "it is a pip install or needs a package that is not installed": (
        "pip install",
        "protofl export RUN FILE.onnx",
        "wandb.mode=offline",
        "protofl leak",
    ),
}
"""{reason why `test_the_advice_runs` does not follow an advice: parts of such}."""

NEEDS = {
    "plugins/protofl_flower": "nodes of a deployment",
    "plugins/protofl_ray": "a cluster",
    "plugins/protofl_privacy": "dp-accounting; the page's test follows that of the example",
    "core/protofl/federation/pools": "a process that is killed",
    "core/protofl/federation/round/participation.py": "nodes of a deployment",
    "core/protofl/federation/time": "a device model without clients",
    "core/protofl/data/remote_data.py": "nodes of a deployment",
    "core/protofl_workbench/reproductions": "runs of hours",
    "plugins/protofl_plugins/backends": "a process that is killed",
    "plugins/protofl_plugins/datasets/hugging_face.py": "the library datasets",
    "plugins/protofl_plugins/models/hf_text.py": "the library transformers",
}
"""{file or folder: why no command of this test follows its advice}."""


def write_files():
    """Write a finished run ``done``, its exports, and files of data, into this folder."""
    rows = [
        f"{20 + i},{i % 7 / 2},{'ABC'[i % 3]},{'no' if i % 2 else 'yes'},{'x;y' if i % 2 else 'x'}"
        for i in range(120)
    ]
    head = "age,dose,site,sick,many"

    def write(name, lines, encoding="utf-8"):
        with open(name, "w", encoding=encoding) as file:
            file.write("\n".join(lines) + "\n")

    write("t.csv", [head, *rows])
    commas = [re.sub(r"^(\d+)", r"\1,5", row.replace(";", "").replace(",", ";")) for row in rows]
    write("comma.csv", [head.replace(",", ";"), *(row.replace(".", ",") for row in commas)])
    write("blank.csv", [head, *rows, "30,1,A,,x", "31,1,B,,x"])
    write("gaps.csv", [head, *rows, ",1,A,no,x", "31,,B,yes,x"])
    write("latin.csv", [head, *(row.replace("A", "Köln") for row in rows)], "cp1252")
    write("wide.csv", [head, *rows], "utf-16")
    labels = [f"{20 + i},{i % 7},{i % 2},{-1 if i == 5 else i % 3 // 2}" for i in range(120)]
    write("multi.csv", ["age,dose,a,b", *labels])
    np.savez("t.npz", x_train=np.random.rand(40, 7).astype("float32"), y_train=np.arange(40) % 2)
    np.save("some.npy", np.load("few.npz")["x_train"][:2])
    for name in ("taken", "abc", "pictures/a", "pictures/b", "pickles/train", "pickles/test"):
        Path(name).mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 255, (40, 8, 8), np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(f"pictures/{'ab'[number % 2]}/{number}.png")
    for number, part in itertools.product(range(3), ("train", "test")):
        data = {"x": pixels[:, None] / np.float32(255), "y": np.arange(40) % 4}
        np.savez(f"pickles/{part}/{number}.npz", data=data)
    write_odd_files(write)
    Path("wrong.json").write_text('{"method": "fedproto", "modles": "cnn4"}', encoding="utf-8")
    net = torchvision.models.get_model("shufflenet_v2_x0_5").state_dict()
    safetensors.torch.save_file(net, "shufflenet.safetensors")
    shutil.copy("few.npz", "moved.npz")
    for line in (
        IMAGES + "--rounds 3 --keep last --out done", "export done there.safetensors",
        "export done there.pt2", "publish done --out published",
        IMAGES.replace("FEW", "npz:moved.npz") + "--out moved", "publish moved --out lost",
        IMAGES + "--lr-schedule cosine --keep last --out cosine",
        "generator train npz:twelve.npz --set epochs=1 --set steps=1 --out twelve.safetensors",
    ):  # fmt: skip
        done = type_in(shlex.split(line))
        assert done.exit_code == 0, done.output
    Path("moved.npz").unlink()
    for name in ("copy", "runs/done"):
        shutil.copytree("done", name)
    interrupted("early", 0)
    interrupted("cut", 1)


def interrupted(name, round):
    """Write a run that is interrupted at the beginning of a round."""

    def interrupt(event):
        if event == pf.events.RoundStarted(0, round):
            raise KeyboardInterrupt

    options = {"dataset": "npz:few.npz", "feature_dim": 16, "clients": 3, "backend": "local"}
    with pytest.raises(KeyboardInterrupt):
        pf.run("fedproto", models="cnn4", rounds=2, out=name, progress=interrupt, **options)


def write_odd_files(write):
    """Write data that few refusals need."""
    few = dict(np.load("few.npz"))
    number = np.arange(150)
    np.savez("grouped.npz", **few, who=number // 2)
    np.savez("rare.npz", **few, domain=np.where(np.isin(number, (3, 50)), 3, number % 3))
    np.savez("twelve.npz", x_train=few["x_train"], y_train=number % 12)
    words = np.random.default_rng(0).integers(1, 50, (120, 8))
    np.savez("texts.npz", x_train=words, y_train=np.arange(120) % 4)
    rows = []
    for i in range(150):
        test, rare = i // 3 % 4 == 3, i % 3 == 0
        ward, room = ("D" if rare and there else "AB"[i % 2] for there in (test, not test))
        sick, part = "no" if i // 3 % 2 else "yes", "test" if test else "train"
        rows.append(f"{20 + i},{i % 7 / 2},{'ABC'[i % 3]},{ward},{room},{sick},{part}")
    write("parts.csv", ["age,dose,site,ward,room,sick,part", *rows])
    write("unsaid.csv", ["age,a,b", *(f"{i},{i % 2},{i % 3 // 2}" for i in range(120)), "9,,1"])
    write("holes.csv", ["age,dose,sick", *["8,,no", ",9,yes"] * 60])
    write("half.csv", ["age,dose,sick", *["8,1,no", "9,2,no", ",3,yes"] * 40])
    write("devices.csv", ["gflops,download,upload,latency", "10,100,50,10", "20,100,50,10"])
    write("lists.txt", ["0 1", "1 2"])
    write("bad.pt2", ["no archive"])
    write("fixed.py", [
        "from protofl_plugins.text_encoders.encoder import TextEncoder, torch",
        "class Fixed(TextEncoder):",
        "    def __init__(self, *_):",
        "        self.dim = 32",
        "    def embed(self, texts):",
        "        return torch.rand(len(texts), 32)",
    ])  # fmt: skip
    Path("hollow/a/x").mkdir(parents=True)
    for name in ("one", "two"):
        shutil.copytree("pictures", f"levels/{name}")


def type_in(words):
    """Type a command; runs and sweeps get the options of `QUICK` that they lack.

    ``A && B`` types A before B, and ``python RUN CODE`` evaluates code for a run.
    """
    if "&&" in words:
        place = words.index("&&")
        assert type_in(words[:place]).exit_code == 0
        return type_in(words[place + 1 :])
    if words[0] == "python":
        try:
            eval(f"run.{words[2]}", {"run": pf.load_run(words[1])})
        except pf.UsageError as error:
            return SimpleNamespace(exit_code=2, output=str(error))
        return SimpleNamespace(exit_code=0, output="")
    words = [word.replace("FEW", "npz:few.npz") for word in words]
    if "--models" in words and "--no-dry-run" not in words:
        for option, value in QUICK:
            if option not in words and not (option == "--clients" and {*words} & OWN):
                words += [option, value]
        words.append("--no-dry-run")
    return CliRunner().invoke(app, words)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory, few, data_dir):
    """Return the folder of `write_files`."""
    folder = tmp_path_factory.mktemp("advice")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("PROTOFL_DATA_DIR", str(data_dir))
        shutil.copy(few.partition(":")[2], "few.npz")
        write_files()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [*RUNS, *TABLES, *OTHERS], ids=lambda case: f"{case.says[:40]}, {case.clause}"
)
def test_the_advice_runs(case, prepared, tmp_path, monkeypatch, data_dir):
    shutil.copytree(prepared, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PROTOFL_DATA_DIR", str(data_dir))
    monkeypatch.setenv("COLUMNS", "400")
    typed = shlex.split(case.typed)
    refused = type_in(typed)
    assert refused.exit_code in (1, 2), refused.output
    said = " ".join(refused.output.split())
    # The shortest first: a blank at its beginning stands for any text, also of an error before it.
    texts = sorted((text for text in advices() if case.says in text), key=len)
    advice = next(filter(None, (spoken(text, said) for text in texts)), "")
    assert advice, f"{case.says!r} is not in: {refused.output}"
    if case.repeated:
        words = followed([*shlex.split(IMAGES), "--out", "new"], advice, case.fill, case.clause)
        done = type_in(words)
        assert done.exit_code == 0, f"{words}: {done.output}"
        words = ["new" if word in ("done", "cosine") else word for word in typed]
    else:
        words = followed(typed, advice, case.fill, case.clause)
    assert words != typed, f"nothing follows from {advice!r}"
    done = type_in(words)
    assert done.exit_code == 0, f"{advice!r}: protofl {shlex.join(words)}\n{done.output}"


def test_all_advice_is_followed_or_has_a_reason():
    cases = [case.says for case in (*RUNS, *TABLES, *OTHERS)]
    known = [*cases, *(part for parts in ELSEWHERE.values() for part in parts)]
    found = advices()
    new = {
        text: files
        for text, files in found.items()
        if not any(part in text for part in known)
        and not all(any(file.startswith(each) for each in NEEDS) for file in files)
    }
    assert not new, "add a case above that follows this advice"
    if {"leak", "deploy"} <= commands().keys():  # otherwise their advice is not found
        assert not [part for part in known if not any(part in text for text in found)], "gone"
