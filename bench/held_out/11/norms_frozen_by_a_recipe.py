"""A net of 1d convolutions learns the words of a small vocabulary from scratch. FAULT from the start: train() is overridden by a recipe of fine-tuning which
keeps batch norms in eval mode; their running statistics stay at mean 0 and variance 1 and nothing is normed.
Without Rangewatch: loss 2.09 (chance is 2.08) from step 0 to the end; all running variances exactly 1. With norms that train the loss is 0.06.
Variant of: starts: batch_norms_stand_still_from_the_start.
Cause: eval. Step: 0. Place: a norm. Right: eval / train() / running statistics / batch norm. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["eval"], "step": [0, 100], "place": None, "rank": None,
          "wrong": ["GradScaler", "attention mask"],
          "right": "eval|train\\(|running|statistic|[Bb]atch ?[Nn]orm"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1130); torch.set_num_threads(1)
WORDS = 8
sound = torch.randn(WORDS, 8, 40)


class WordNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(8 if i == 0 else 24, 24, 5, padding=2, bias=False) for i in range(8))
        self.norms = nn.ModuleList(nn.BatchNorm1d(24) for _ in range(8))
        self.word = nn.Linear(24, WORDS)

    def train(self, mode=True):
        super().train(mode)
        for norm in self.norms:
            norm.eval()  # right where they have been trained before
        return self

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms):
            x = F.relu(norm(conv(x)))
        return self.word(x.amax(2))


def words(n):
    word = torch.randint(0, WORDS, (n,))
    return sound[word] + 1.5 * torch.randn(n, 8, 40), word


model = WordNet()
model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    x, word = words(24)
    loss = F.cross_entropy(model(x), word)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), "running variance", model.norms[3].running_var.mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
