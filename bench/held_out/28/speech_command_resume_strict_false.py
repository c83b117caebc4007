"""A conv and GRU net that sorts spoken commands (tones in noise), trained with preemption: at step 120 the job starts anew from its checkpoint. FAULT: the new job
builds and initialises the net again and loads with strict=False a checkpoint whose keys begin with `module.`; not one key fits, the net stays as it was
drawn, without a word.
Without Rangewatch: loss 1.82 to 0.25 at step 119, 1.80 at step 120 (log 6 is 1.79), 0.52 at the end.
Cause: weight. Step: 120. Right: checkpoint / load / keys / overwritten. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["weight"], "step": [119, 122], "place": None, "rank": None,
          "right": "(?i)checkpoint|load|strict|state_dict|overwrit|outside|reset|re-?init|restore", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(321); torch.set_num_threads(1)


class Commands(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(1, 16, 16, 8), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 24, 5, 2), nn.BatchNorm1d(24), nn.ReLU())
        self.rnn = nn.GRU(24, 32, batch_first=True)
        self.fc = nn.Linear(32, 6)
        self.reset_parameters()

    def reset_parameters(self):
        for m in self.modules():
            if isinstance(m, (nn.Conv1d, nn.Linear, nn.BatchNorm1d, nn.GRU)):
                m.reset_parameters()

    def forward(self, x):
        return self.fc(self.rnn(self.front(x[:, None]).transpose(1, 2))[0].mean(1))


t = torch.arange(512) / 512


def speak(n):
    y = torch.randint(0, 6, (n, 1))
    f = 20 + 14 * (y // 2) + 3 * torch.randn(n, 1)
    sweep = torch.where(y % 2 == 0, 1.0, -1.0) * 18
    return torch.sin(6.283 * (f * t + 0.5 * sweep * t * t)) + 0.5 * torch.randn(n, 512), y[:, 0]


def resume(model, optimizer, saved):
    model.reset_parameters()
    model.load_state_dict(saved["model"], strict=False)
    optimizer.load_state_dict(saved["optimizer"])


model = Commands()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    if step == 120:
        saved = {"model": {"module." + k: v.clone() for k, v in model.state_dict().items()}, "optimizer": optimizer.state_dict()}
        resume(model, optimizer, saved)
    x, y = speak(32)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 118 < step < 124 or step == 199:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
