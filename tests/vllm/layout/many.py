# SPDX-License-Identifier: Apache-2.0
"""python -m kvferry.vllm.layout several times in one process: python -m many, a JSON list of jobs.

A job has arguments and environment; all with --gpu have the same one.
"""

import json
import os
import sys
import traceback

from kvferry.vllm._offline import main

for job in json.loads(sys.argv[1]):
    os.environ.update(job["environment"])
    try:
        status = main(job["arguments"])
    except Exception as error:  # the case that asked for it fails, and only that
        traceback.print_exc()
        status = repr(error)
    for name in job["environment"]:
        del os.environ[name]
    if status:
        print("status", status)
    print("--", flush=True)
