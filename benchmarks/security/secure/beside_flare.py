"""One mean with NVIDIA FLARE's homomorphic filters: python beside_flare.py SITES NUMBERS LOST, in
an environment of its own with nvflare and tenseal. See `run.py beside`.

Encryptor, aggregator and decryptor are FLARE's own, with the keys of its provisioning (CKKS, degree
8192, moduli of 60, 40 and 40 bits, scale 2^40, symmetric). Ciphertexts travel as its decomposers
write them; the time for that is given apart (`site_codec_s`, `server_codec_s`).
"""

from __future__ import annotations

import logging
import time
from importlib import metadata
from typing import Any

import numpy as np
import tenseal as ts
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_opt.he.intime_accumulate_model_aggregator import (
    HEInTimeAccumulateWeightedAggregator,
)
from nvflare.app_opt.he.model_decryptor import HEModelDecryptor
from nvflare.app_opt.he.model_encryptor import HEModelEncryptor
from nvflare.lighter.impl.he import HEBuilder
from vectors import lost_of, report, run, vector

logging.disable(logging.CRITICAL)


class Clock:
    """Seconds of the processor, by what they were spent on."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._last = time.process_time()

    def start(self) -> None:
        """From now on."""
        self._last = time.process_time()

    def stop(self, name: str) -> None:
        """Until now."""
        now = time.process_time()
        self.spent[name] = self.spent.get(name, 0.0) + now - self._last
        self._last = now


def keys() -> tuple[Any, bytes]:
    """The sites' context, with the secret key, and the server's as it is provisioned."""
    builder = HEBuilder()
    builder.initialize(None, None)  # type: ignore[arg-type]
    client = ts.context_from(builder.get_serialized_context(is_client=True))
    return client, builder.get_serialized_context()


def measure(sites: int, numbers: int, lost: int) -> None:
    """One mean: seconds of a site and of the server, bytes, error."""
    clock, (secret, public) = Clock(), keys()
    server_context = ts.context_from(public)
    context = FLContext()
    context.set_peer_context(FLContext())
    context.set_prop(AppConstants.CURRENT_ROUND, 0, private=True, sticky=False)
    aggregator = HEInTimeAccumulateWeightedAggregator()
    aggregator.handle_event(EventType.START_RUN, context)
    encryptor = HEModelEncryptor()
    encryptor.tenseal_context, encryptor.encrypt_layers = secret, [True]
    kept = [site for site in range(sites) if site not in lost_of(sites, lost)]
    up_bytes = 0
    for site in kept:
        drawn = vector(site, numbers)
        clock.start()
        sent = DXO(DataKind.WEIGHT_DIFF, {"weights": drawn}, {MetaKey.NUM_STEPS_CURRENT_ROUND: 1})
        sent = encryptor.process_dxo(sent, Shareable(), context)
        clock.stop("site")
        wire, key = sent.data["weights"].serialize(), secret.serialize()
        up_bytes = len(wire) + len(key)
        clock.stop("site_codec")
        sent.data["weights"] = ts.ckks_vector_from(server_context, wire)
        del wire
        clock.stop("server_codec")
        shared = sent.to_shareable()
        shared.set_peer_props({ReservedKey.IDENTITY_NAME: f"site-{site}"})
        shared.add_cookie(AppConstants.CONTRIBUTION_ROUND, 0)
        assert aggregator.accept(shared, context)
        clock.stop("server")
    clock.start()
    result = from_shareable(aggregator.aggregate(context))
    clock.stop("server")
    wire, key = result.data["weights"].serialize(), server_context.serialize()
    clock.stop("server_codec")
    result.data["weights"] = ts.ckks_vector_from(secret, wire)
    clock.start()
    decryptor = HEModelDecryptor()
    decryptor.tenseal_context = secret
    layers = result.get_meta_prop(MetaKey.PROCESSED_KEYS)
    opened = decryptor.decryption(result.data, layers, context)["weights"]
    clock.stop("opened")
    spent = clock.spent
    report(
        np.asarray(opened), kept, numbers,
        library="FLARE HE", version=metadata.version("nvflare"),
        tenseal=metadata.version("tenseal"),
        site_s=spent["site"] / len(kept) + spent["opened"], decrypt_s=spent["opened"],
        server_s=spent["server"], site_codec_s=spent["site_codec"] / len(kept),
        server_codec_s=spent["server_codec"], up_bytes=up_bytes, down_bytes=len(wire) + len(key),
    )  # fmt: skip


if __name__ == "__main__":
    run(measure)
