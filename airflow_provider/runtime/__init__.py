"""Everything below Airflow: nothing in here imports ``airflow``."""
