"""The wire's vocabulary: the keys of payloads and of the server's knowledge, for all methods.

Methods send the same thing under the same name, so that hooks of one method can read payloads of
another. N is the number of samples, n of the sender's classes, C of all classes, K of features, H
of numbers in a generator's vector.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Key:
    """One name on the wire.

    Attributes:
        name: The name; ``…`` and the words in capitals are placeholders.
        shape: The tensor's shape, and its dtype if it is not a floating-point type.
        meaning: Its content.
        by_class: True if its rows belong to the classes that ``classes`` names.
        varies: A dimension, counted from the last as -1, whose size may differ between payloads:
            the rank of factors, the same for all factors of a tensor. 0 for none.
    """

    name: str
    shape: str
    meaning: str
    by_class: bool = False
    varies: int = 0


VOCABULARY = (
    Key("prototypes", "[n, K]", "mean feature, anchor or trained prototype of each class", True),
    Key("prototypes/*", "[n, WIDTH]", "the prototypes in features of one native width (FedSAF)"),
    Key("global_prototypes", "[n, K]", "this round's aggregated prototypes, beside anchors", True),
    Key("class_logits", "[n, C]", "mean output of each class (FedDistill)", True),
    Key("guides", "[C, K] or [C, C]", "FedL2G's guiding vector of each class", True),
    Key("guide_gradients", "[n, K] or [n, C]", "a quiz loss by the guides (FedL2G)", True),
    Key("logit_scale", "[]", "s: cosines with embeddings of texts are multiplied by e^s (FedTSP)"),
    Key("warmed_up", "[] bool", "whether clients train in this round (FedL2G)"),
    Key(
        "counts",
        "[n] int",
        "training samples of each row; sent only if an equation needs it",
        True,
    ),
    Key("latents", "[n, H]", "the vector of which each class's image was generated", True),
    Key("images", "[n, channels, H, W]", "one generated image of each class (FedKTL)", True),
    Key("classes", "[n] int", "the class of each row of the class-indexed tensors"),
    Key("NAME.classes", "[n] int", "the same for the tensor NAME, if its rows differ"),
    Key("samples", "[] int", "the sender's training samples, where an average is weighted by it"),
    Key("public_logits", "[N, C]", "scores of the public samples"),
    Key("public_probabilities", "[N, C]", "softmax of the scores of the public samples"),
    Key(
        "public_index",
        "[N] int",
        "the rows of the public samples of `public_…` tensors; all if it is missing",
    ),
    Key("model/*", "as the parameter", "weights of a whole model"),
    Key("model_update/*", "as the parameter", "change of a whole model by training (FIARSE)"),
    Key("head/*", "as the parameter", "weights of the classifier on K features"),
    Key("auxiliary/*", "as the parameter", "weights of a small model trained beside the own one"),
    Key("generator/*", "as the parameter", "weights of a generator of features (FedGen)"),
    Key(
        "PREFIX/buffer/*",
        "as the buffer",
        "buffers of that module (BatchNorm statistics), which don't count as floats; of integer "
        "ones an average takes the maximum",
    ),
    Key(
        "model@ARCHITECTURE/*",
        "as the parameter",
        "in the server's knowledge only: weights of one of several architectures; the download "
        "strips the suffix",
    ),
    Key(
        "auxiliary_update/NAME/u",
        "[rows, r]",
        "FedKD's truncated update of parameter NAME: U",
        varies=-1,
    ),
    Key("auxiliary_update/NAME/s", "[r]", "Σ of the same update", varies=-1),
    Key(
        "auxiliary_update/NAME/vh",
        "[r, columns]",
        "V of the same update, transposed",
        varies=-2,
    ),
    Key("auxiliary_update/NAME", "as the parameter", "the update of a 1-D parameter, whole"),
    Key("adapter/NAME/a", "[r, columns]", "A of ΔW = s·B·A of the weight NAME", varies=-2),
    Key("adapter/NAME/b", "[rows, r]", "B of the same adapter", varies=-1),
    Key("adapter/NAME", "[rows, columns]", "what FLoRA has merged into NAME so far"),
    Key("adapter_version", "[] int", "number of merges that a download of FLoRA brings"),
    Key(
        "auxiliary_version",
        "[] int",
        "which broadcast of FedKD's auxiliary model a download brings a client to",
    ),
)
"""All keys that the methods of this distribution use."""


def find_key(name: str) -> Key | None:
    """Return the vocabulary's entry for a name, ``head/weight`` or ``head/*``, or None."""
    known = {key.name: key for key in VOCABULARY}
    if name in known:
        return known[name]
    owner, dot, end = name.rpartition(".")
    if dot and end == "classes" and owner in known:
        return known["NAME.classes"]
    prefix, slash, rest = name.partition("/")
    if not slash:
        return None
    if rest.startswith("buffer/") and f"{prefix}/*" in known:
        return known["PREFIX/buffer/*"]
    if "@" in prefix:
        return known.get(f"{prefix.partition('@')[0]}@ARCHITECTURE/*")
    factor = known.get(f"{prefix}/NAME/{rest.rpartition('/')[2]}")
    return factor or known.get(f"{prefix}/*") or known.get(f"{prefix}/NAME")
