"""Airflow: the jobs once each quarter of an hour, then a page of the last day.

A run that fails is tried again by Airflow, and goes on where the one before stopped.
"""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG(
    "rtmb_pipeline",
    schedule=timedelta(minutes=15),
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
):
    jobs = BashOperator(
        task_id="jobs",
        bash_command="rtmb pipeline run /etc/rtmb/pipeline.toml --once --json",
        cwd="/var/lib/rtmb",
    )
    page = BashOperator(
        task_id="page",
        bash_command="rtmb pipeline report --archive weather --since 24h -o report.html",
        cwd="/var/lib/rtmb",
    )
    jobs >> page
