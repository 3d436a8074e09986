"""From Airflow connections to clusters, channels and secrets."""
