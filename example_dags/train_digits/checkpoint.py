"""A checkpoint that is always whole, whenever the machine is lost."""

import os
from pathlib import Path

import joblib
from sklearn.base import BaseEstimator


class Checkpoint:
    """The number of epochs done and the model as it was then, in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> tuple[int, BaseEstimator] | None:
        """Return what was saved last, if anything was."""
        if not self.path.exists():
            return None
        saved = joblib.load(self.path)
        return saved["epoch"], saved["model"]

    def save(self, epoch: int, model: BaseEstimator) -> None:
        """Replace the checkpoint. A loss half-way through leaves the one before."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".tmp")
        with open(unfinished, "wb") as file:
            joblib.dump({"epoch": epoch, "model": model}, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.path)
