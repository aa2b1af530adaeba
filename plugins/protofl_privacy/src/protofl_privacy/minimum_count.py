"""Minimum count: a client does not send rows of classes of which it has few samples.

In the spirit of k-anonymity (Sweeney, "k-anonymity: A Model for Protecting Privacy", 2002): a
prototype of one sample is a feature of a person, one of N samples is a mean of N. **It is not a
proof.** A class that is left out is still one of which the client has fewer than N samples; the
difference of two rounds may show a single sample; and the rows that are sent are exact.
"""

from __future__ import annotations

from collections.abc import Generator

import protofl as pf


class MinimumCount:
    """Leaves out rows of classes with fewer than N samples of the client; no proof of privacy."""

    class Config(pf.Config):
        """Options."""

        n: int = pf.Field(5, ge=1, description="N, smallest number of samples of a class")

    @pf.hookimpl(wrapper=True)
    def upload_payload(self, client: pf.Client[Config]) -> Generator[None, pf.Payload, pf.Payload]:
        """Leave out the rows of small classes.

        Raises:
            UsageError: No tensor of the upload has rows by class.
        """
        payload = yield
        named = [k for k in payload.keys() if not _is_classes(k) and payload.has_class_rows(k)]
        if payload and not named:
            raise pf.UsageError(
                "minimum-count: the upload has no rows by class, so nothing would be left out",
                f"it has: {', '.join(sorted(payload)[:5])}",
                "leave it out, or take a method that sends prototypes",
            )
        enough = client.class_counts >= client.config.n
        sent = pf.Payload(payload)
        for key in named:
            sent[key] = payload[key][enough[payload.classes_of(key)]]
        for key in filter(_is_classes, payload.keys()):
            sent[key] = payload[key][enough[payload[key]]]
        return sent


def _is_classes(key: str) -> bool:
    return key == "classes" or key.endswith(".classes")
