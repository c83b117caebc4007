"""Two ranks train a net that guesses the language of a word from its letters (embedding, one convolution, maximum); gradients are averaged by hand in one flat
buffer. FAULT at step 112: on rank 1 alone a row of the hidden layer's weight (hidden.weight) is NaN. Its loss is NaN in this step, and through the average
all gradients and then all weights of both ranks.
Without Rangewatch: loss 1.42 to 0.079 at step 111 on rank 1; NaN on rank 1 at step 112, on both from step 113 to the end.
Causes: weight (of rank 1), hardware. Right: the weight of rank 1 / a checkpoint / broadcast. Wrong: lower the rate, GradScaler, attention mask."""
EXPECT = {"cause": ["weight", "hardware"], "step": [111, 113], "place": "hidden.*", "rank": 1, "ranks": 2,
          "right": "(?i)weight|parameter|checkpoint|hardware|memory", "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"]}
import os
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import rangewatch

dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
torch.manual_seed(2226); torch.set_num_threads(1)
habits = (2.5 * torch.randn(4, 26, 26)).softmax(2)


class Guess(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter = nn.Embedding(26, 24)
        self.pairs = nn.Conv1d(24, 64, 2)
        self.hidden, self.language = nn.Linear(64, 48), nn.Linear(48, 4)

    def forward(self, x):
        h = self.pairs(self.letter(x).transpose(1, 2)).amax(2)
        return self.language(F.gelu(self.hidden(F.gelu(h))))


def words(n):
    y = torch.randint(0, 4, (n,))
    text = [torch.randint(0, 26, (n,))]
    for _ in range(9):
        text.append(torch.multinomial(habits[y, text[-1]], 1)[:, 0])
    return torch.stack(text, 1), y


model = Guess()
optimizer = torch.optim.Adamax(model.parameters(), lr=5e-3)
handle = rangewatch.attach(model, optimizer)
torch.manual_seed(1000 + rank)
for step in range(170):
    if step == 112 and rank == 1:
        model.hidden.weight.data[31] = torch.nan
    x, y = words(32)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat)
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p) / 2)
        at += p.numel()
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 25 == 0 or step in (111, 112, 113, 169):
        print("rank", rank, "step", step, loss.item(), flush=True)
handle.detach()
dist.destroy_process_group()
