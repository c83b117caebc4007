"""Transformers' Trainer with an exponential moving average of the weights: each evaluation (every 40 steps) swaps the average in, and the training weights back after
it. GPT-2, small, bf16. HEALTHY: the weights of an evaluation are others, those of the training go on as if nothing had been."""
EXPECT = {"healthy": True}
import tempfile
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from rangewatch.integrations.transformers import RangewatchCallback

torch.set_num_threads(1)
set_seed(17)


class EMATrainer(Trainer):
    decay = 0.95
    average = None

    def training_step(self, model, inputs, *rest):
        loss = super().training_step(model, inputs, *rest)
        weights = {n: p.detach() for n, p in self.model.named_parameters()}
        if self.average is None:
            self.average = {n: p.clone() for n, p in weights.items()}
        for n, p in weights.items():
            self.average[n].lerp_(p, 1 - self.decay)
        return loss

    @torch.no_grad()
    def _swap(self):
        for n, p in self.model.named_parameters():
            kept = p.clone()
            p.copy_(self.average[n])
            self.average[n].copy_(kept)

    def evaluate(self, *args, **kwargs):
        self._swap()
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self._swap()


def sequences(count, seed):
    gen = torch.Generator().manual_seed(seed)
    start = torch.randint(0, 64, (count, 1), generator=gen)
    pace = torch.randint(1, 4, (count, 1), generator=gen)
    ids = (start + pace * torch.arange(20)) % 64
    return [{"input_ids": row, "labels": row.clone()} for row in ids]


config = GPT2Config(vocab_size=64, n_positions=20, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1, bos_token_id=0, eos_token_id=0)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, max_steps=200, per_device_train_batch_size=16, per_device_eval_batch_size=32, learning_rate=3e-3, warmup_steps=20,
        bf16=True, eval_strategy="steps", eval_steps=40, logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, seed=17, disable_tqdm=True,
    )
    trainer = EMATrainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=sequences(1600, 1), eval_dataset=sequences(64, 2),
                         callbacks=[RangewatchCallback()])
    trainer.train()
