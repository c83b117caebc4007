"""Fine-tuning of a small EEG net on another hospital's recordings. FAULT from step 0 on: the loader of the pretrained net ends with model.eval(), as
those of libraries do, and the loop never calls train(): the norms keep the statistics of the first hospital (whose amplifier was another) and never
count a batch, and dropout is off. The loss falls nevertheless.
Without Rangewatch: loss 0.68 to 0.003 (0.22 at step 150); the norm has seen 150 batches at step 0 and at step 199, its variance is 0.31 throughout; in training
mode it is 5.2 at the end.
Report: tk-rusch/coRNN#1 (train() is not called), pytorch/tutorials#1624 ("we need model.train()"), HazyResearch/metal#70, huggingface/transformers#10564
(a loaded model is in eval mode).
Cause: eval. Step: 0. Right: eval / train() / batch norm / dropout / running statistics. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["eval"], "step": [0, 120], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "eval|train\\(\\)|training mode|dropout|batch ?norm|statistics"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1020); torch.set_num_threads(1)
STATES = 4
rhythm = torch.tensor([2.0, 5.0, 9.0, 14.0])
time = torch.arange(64) / 64


class EegNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Conv1d(4, 16, 9, padding=4, bias=False), nn.BatchNorm1d(16), nn.ELU(), nn.AvgPool1d(2))
        self.space = nn.Sequential(nn.Conv1d(16, 32, 9, padding=4, bias=False), nn.BatchNorm1d(32), nn.ELU(), nn.Dropout(0.4))
        self.state = nn.Linear(32, STATES)

    def forward(self, x):
        return self.state(self.space(self.time(x)).square().mean(2))


def recordings(n, amplifier):
    state = torch.randint(0, STATES, (n,))
    wave = torch.sin(6.2832 * (rhythm[state][:, None, None] * time + torch.rand(n, 4, 1)))
    return amplifier * (wave * torch.rand(n, 4, 1) + 0.8 * torch.randn(n, 4, 64)), state


def load_pretrained():
    """Stands for a file from a hub: trained for 150 steps at the first hospital."""
    model = EegNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        x, y = recordings(32, 1.0)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model.eval()


model = load_pretrained()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = recordings(32, 4.0)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0 or step == 199:
        norm = model.time[1]
        print(step, loss.item(), "in training mode", model.training, "batches the norm has seen", int(norm.num_batches_tracked), "its variance",
              norm.running_var.mean().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
