"""Measures the trained model on the test data and returns the result to Airflow."""

import json
import os
from pathlib import Path

import joblib
import numpy as np


def main() -> None:
    run_dir = Path(os.environ["RUN_DIR"])
    trained = joblib.load(run_dir / "model.joblib")
    accuracy = trained["model"].score(np.load(run_dir / "x_test.npy"), np.load(run_dir / "y_test.npy"))
    result = {"accuracy": round(float(accuracy), 4), "epochs": trained["epochs"]}
    print(f"accuracy on the test data: {result['accuracy']:.4f} after {result['epochs']} epochs")
    # What is written here as JSON becomes the Airflow task's return value.
    Path(os.environ["TASK_OUTPUT_FILE"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
