"""Splits scikit-learn's bundled digits into training and test data under $RUN_DIR."""

import os
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def main() -> None:
    run_dir = Path(os.environ["RUN_DIR"])
    run_dir.mkdir(parents=True, exist_ok=True)
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16.0, labels, test_size=0.25, random_state=0, stratify=labels)
    for name, part in zip(("x_train", "x_test", "y_train", "y_test"), parts, strict=True):
        np.save(run_dir / f"{name}.npy", part)
        print(f"{name}: {part.shape}")


if __name__ == "__main__":
    main()
