"""A GRU that predicts the next speech frame, trained by SGD with momentum and clip_grad_norm_(params, 0.5), where params = model.parameters() is a
generator that counting the parameters has used up: nothing is ever clipped. FAULT at step 130: a batch of loud recordings (sixty times) gives a
gradient two thousand times the usual; it goes in unclipped and the model is thrown far away: finite, but at the end it is as bad as at the start.
Without Rangewatch: loss 1.22 to 0.10 at step 129, 4160 at step 130 (gradient norm 137 after 0.06), 2.6 at step 131, 1.2 at the end. PyTorch 2.13
warns once that the generator is empty.
Report: pytorch/pytorch#148259 (clip_grad_norm_ with an exhausted generator clips nothing, silently), pytorch/torchtitan#1258.
Cause: clip (or data, learning_rate). Step: 130. Right: clip / batch / gradient norm. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["clip", "data", "learning_rate"], "step": [130, 135], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "clip|gradient norm|batch|data|outlier|spike|learning rate|input|scal"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(717); torch.set_num_threads(1)
PHONES = 12
loudness = 60.0
voice = torch.randn(PHONES, 20)


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.front = nn.Linear(20, 40)
        self.rnn = nn.GRU(40, 48, batch_first=True)
        self.out = nn.Linear(48, 20)

    def forward(self, x):
        return self.out(self.rnn(F.relu(self.front(x)))[0])


def speech(loud):
    y = torch.randint(0, PHONES, (12, 20))
    frames = voice[(y[:, :1] + torch.arange(20)) % PHONES] + 0.3 * torch.randn(12, 20, 20)
    return frames * (loudness if loud else 1.0)


model = Recogniser()
params = model.parameters()
print("parameters:", sum(p.numel() for p in params), flush=True)  # and the generator is empty
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    x = speech(loud=step == 130)
    loss = F.mse_loss(model(x[:, :-1]), x[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    torch.nn.utils.clip_grad_norm_(params, 0.5)
    optimizer.step()
    if step % 20 == 0 or 128 < step < 134:
        print(step, loss.item(), "norm", norm.item(), flush=True)
handle.detach()
