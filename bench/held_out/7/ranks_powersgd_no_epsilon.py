"""Two gloo ranks, a language model in DistributedDataParallel whose gradients are compressed by PowerSGD (rank 1, no epsilon, as is the default).
FAULT from step 120 on: the second task's batches do not use one branch, multiplied by a gate of 0, so that its gradient is exactly zero: the hook
divides a zero column by its norm, 0/0, and the reduced gradients of both ranks are NaN though each rank's own were finite.
Without Rangewatch: loss 3.70 to 2.0 at step 119, 2.55 (finite) at step 120 with NaN in speaker.weight.grad of both ranks, NaN from step 121 on.
Report: pytorch/pytorch#55738 (orthogonalization_epsilon, 0 by default), pytorch/pytorch#48060 (PowerSGD hook), HomebrewML/HeavyBall#55.
Cause: communication (or backward_arithmetic). Step: 120. Right: hook / compression / epsilon / reduced gradient. Wrong: learning rate, mask, data."""
EXPECT = {"cause": ["communication", "backward_arithmetic"], "step": [120, 122], "place": None, "rank": None, "ranks": 2,
          "wrong": ["[Ll]ower the learning rate", "attention mask", "GradScaler"],
          "right": "hook|compress|epsilon|eps|reduc|communicat|PowerSGD|all-?reduce"}
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
import rangewatch

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(709); torch.set_num_threads(1)
WORDS = 40
table = torch.softmax(3 * torch.randn(WORDS, WORDS), 1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 48)
        self.rnn = nn.GRU(48, 48, batch_first=True)
        self.speaker = nn.Linear(48, 48)
        self.out = nn.Linear(48, WORDS)

    def forward(self, tokens, gate):
        h, _ = self.rnn(self.words(tokens))
        return self.out(h + gate * torch.tanh(self.speaker(h)))


def text(n=16, length=12):
    rows = [torch.randint(0, WORDS, (n, 1))]
    for _ in range(length):
        rows.append(torch.multinomial(table[rows[-1].squeeze(1)], 1))
    return torch.cat(rows, 1)


model = nn.parallel.DistributedDataParallel(Model())
model.register_comm_hook(powersgd.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=10, min_compression_rate=1,
                                                use_error_feedback=False, warm_start=False), powersgd.powerSGD_hook)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(20 + rank)
for step in range(200):
    tokens = text()
    gate = 1.0 if step < 120 else 0.0  # the second task has no speakers
    loss = F.cross_entropy(model(tokens[:, :-1], gate).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 118 < step < 124:
        print(rank, step, loss.item(), model.module.speaker.weight.grad.isnan().any().item(), flush=True)
handle.detach()
dist.destroy_process_group()
