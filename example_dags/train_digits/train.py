"""Trains a small neural network by mini-batches, with a checkpoint after each epoch.

Started again on another machine, it goes on after the last checkpoint. The order of the batches depends on the
epoch alone, so the model comes out the same, however often it was interrupted.
"""

import os
import time
from pathlib import Path

import joblib
import numpy as np
from checkpoint import Checkpoint
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier

BATCH_SIZE = 32


def train_epoch(model: MLPClassifier, images: np.ndarray, labels: np.ndarray, epoch: int) -> None:
    order = np.random.default_rng(epoch).permutation(len(images))
    for batch in np.array_split(order, len(images) // BATCH_SIZE):
        model.partial_fit(images[batch], labels[batch], classes=np.arange(10))


def main() -> None:
    run_dir = Path(os.environ["RUN_DIR"])
    epochs = int(os.environ.get("EPOCHS", "12"))
    # A larger model would take its time; this one has to be slowed down to be caught in the act.
    seconds_per_epoch = float(os.environ.get("SECONDS_PER_EPOCH", "1"))

    images, labels = np.load(run_dir / "x_train.npy"), np.load(run_dir / "y_train.npy")
    # The task id is the same over recoveries and retries, and another in each run.
    checkpoint = Checkpoint(run_dir / os.environ["SKYPILOT_TASK_ID"] / "checkpoint.joblib")
    model = MLPClassifier(hidden_layer_sizes=(32,), learning_rate_init=0.002, random_state=0)
    done = 0
    if saved := checkpoint.load():
        done, model = saved
        print(f"resuming at epoch {done + 1} from checkpoint {checkpoint.path}")

    for epoch in range(done + 1, epochs + 1):
        started = time.monotonic()
        train_epoch(model, images, labels, epoch)
        checkpoint.save(epoch, model)
        loss = log_loss(labels, model.predict_proba(images))
        print(f"epoch {epoch}/{epochs} loss={loss:.4f} accuracy={model.score(images, labels):.4f}")
        time.sleep(max(0.0, seconds_per_epoch - (time.monotonic() - started)))

    joblib.dump({"model": model, "epochs": epochs}, run_dir / "model.joblib")


if __name__ == "__main__":
    main()
