# SPDX-License-Identifier: Apache-2.0
"""What vLLM needs of kvferry; docs/vllm.md is the page. Importing this imports neither vLLM nor torch."""
