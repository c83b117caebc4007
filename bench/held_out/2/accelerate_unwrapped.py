"""Accelerate on two CPU ranks (gloo): a decoder for melodies. FAULT at step 80: to write samples the script takes `accelerator.unwrap_model(model)` and goes on
training with that: the forward no longer passes DDP, gradients stay those of each rank, and the replicas part. Both losses fall as before. Report:
kohya-ss/sd-scripts#924 (gradients not synchronized, unwrapped before training), huggingface/trl#5282, k2-fsa/icefall#226.
Cause: replicas, at step 80 or at a later comparison. Right: call the wrapped model / gradients are not reduced. Wrong: learning rate, mask, data."""
EXPECT = {"cause": ["replicas"], "step": [80, 185], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "bfloat16", "leave out samples"], "right": "DDP|wrap|\\.module|all_reduce|reduc"}
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from rangewatch.integrations.accelerate import attach

NOTES, LENGTH = 36, 24


class Melody(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.note = nn.Embedding(NOTES, width)
        self.place = nn.Parameter(0.02 * torch.randn(LENGTH, width))
        self.rnn = nn.GRU(width, width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, NOTES)

    def forward(self, notes):
        x = self.note(notes) + self.place[: notes.shape[1]]
        return self.out(self.norm(self.rnn(x)[0]))

    @torch.no_grad()
    def sample(self, start, count):
        notes = start
        for _ in range(count):
            notes = torch.cat([notes, self(notes)[:, -1:].argmax(-1)], 1)
        return notes


def melodies(count):
    gen = torch.Generator().manual_seed(1)
    start = torch.randint(0, NOTES, (count, 1), generator=gen)
    pace = torch.randint(1, 6, (count, 1), generator=gen)
    notes = start + pace * torch.arange(LENGTH)
    wrong = torch.rand(count, LENGTH, generator=gen) < 0.08
    return (notes + wrong * torch.randint(1, 9, (count, LENGTH), generator=gen)) % NOTES


def main():
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    model = Melody()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(TensorDataset(melodies(32 * 200)), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    handle = attach(model, optimizer)
    for step, (notes,) in enumerate(loader):
        if step % 80 == 0 and step > 0:
            model = accelerator.unwrap_model(model)
            accelerator.print("sample", model.sample(notes[:1, :3], 6).tolist())
        logits = model(notes[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), notes[:, 1:].flatten())
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        handle.log(loss=loss.item())
        if step % 20 == 0:
            print(accelerator.process_index, step, round(loss.item(), 4), flush=True)
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    both = accelerator.gather(flat[None])
    accelerator.print("largest difference", (both[0] - both[1]).abs().max().item())
    accelerator.end_training()


if __name__ == "__main__":
    main()
