"""Training, whatever the model: batches, trainers, optimisers, encoders, gradients."""

from __future__ import annotations
