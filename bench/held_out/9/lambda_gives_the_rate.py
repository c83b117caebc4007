"""A keyword spotter (1-D convolutions), SGD with momentum and the decay of domain adaptation papers. FAULT from step 0 on: LambdaLR wants a factor, its
lambda gives the rate itself, so that the rate is 0.003 times 0.003, 9e-6, and nothing is learnt. All is finite.
Without Rangewatch: loss 2.24 to 2.19 in 300 steps (log of 10 is 2.30); with the factor alone it falls far below 1.
Report: lhoyer/MIC#60 (the lambda must not be multiplied by args.lr), pytorch/pytorch#78917 (1e-6 instead of 1e-3), tsun/SSRT#5.
Cause: learning_rate. Step: 0. Right: learning rate / schedule / too small. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 150], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "[Ll]ower the learning rate"],
          "right": "learning rate|lr\\b|schedul|step size|small"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(803); torch.set_num_threads(1)
LR, WORDS = 3e-3, 10
formants = torch.randn(WORDS, 20, 1) + 0.5 * torch.randn(WORDS, 20, 24)


class KeywordNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.Sequential(nn.Conv1d(20, 32, 5, padding=2), nn.BatchNorm1d(32), nn.ReLU(), nn.MaxPool1d(2),
                                   nn.Conv1d(32, 48, 5, padding=2), nn.BatchNorm1d(48), nn.ReLU())
        self.out = nn.Linear(48, WORDS)

    def forward(self, x):
        return self.out(self.convs(x).mean(2))


model = KeywordNet()
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, nesterov=True, weight_decay=1e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda x: LR * (1.0 + 0.0003 * x) ** -0.75)  # is multiplied by LR once more
handle = rangewatch.attach(model, optimizer)
for step in range(300):
    word = torch.randint(0, WORDS, (48,))
    spectrum = formants[word] * torch.rand(48, 1, 1) * 2 + 0.7 * torch.randn(48, 20, 24)
    loss = F.cross_entropy(model(spectrum), word)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 30 == 0 or step == 299:
        print(step, loss.item(), scheduler.get_last_lr(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
