"""From a diagnosis to faster settings: cost model, experiments, plan, ledger, gates, tuner."""
