"""`make demo`: a training chain in a real Airflow loses its machine half-way, goes on, finishes and cleans up."""
