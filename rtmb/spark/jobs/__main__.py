"""The jobs for spark-submit: `spark-submit …/rtmb/spark/jobs/__main__.py archive 'weather.>'`."""

from rtmb.cli.pipeline import pipeline

if __name__ == "__main__":
    pipeline(prog_name="rtmb pipeline")
