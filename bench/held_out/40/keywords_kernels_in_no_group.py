"""Spoken keywords from 20 mel bands: three temporal convolutions and a linear head, AdamW with weight decay on the matrices and none on the vectors.
FAULT at step 0: the groups are made by ndim == 2 (decay) and ndim == 1 (no decay); the kernels of nn.Conv1d have three dimensions and stand in neither group: they get gradients but are never updated.
Without Rangewatch: loss 2.1 to 1.6, accuracy 0.4 at the end, while the kernels have gradients (norm 0.6 to 3.5) and have not moved by anything.
Cause: optimizer (parameters in no group). Step: from 0. Right: put the convolutions' weights in a group (ndim >= 2). Wrong: lower the learning rate, GradScaler, attention mask."""
EXPECT = {"cause": ["optimizer"], "step": [0, 100], "place": r"(?i)conv", "rank": None,
          "right": r"(?i)optimi[sz]er|param.?group|never (updated|chang|mov)|not (updated|in any)|group", "wrong": [r"(?i)lower the learning rate", "GradScaler", r"(?i)attention mask"]}
import torch
from torch import nn
import rangewatch

WORDS, MELS, FRAMES = 8, 20, 40


class Speech:
    def __init__(self):
        self.track = torch.randn(WORDS, MELS, 12)

    def batch(self, n):
        y = torch.randint(0, WORDS, (n,))
        x = 0.9 * torch.randn(n, MELS, FRAMES)
        for i, start in enumerate(torch.randint(0, FRAMES - 12, (n,)).tolist()):
            x[i, :, start:start + 12] += self.track[y[i]]
        return x, y


class KeywordNet(nn.Module):
    def __init__(self, ch=32):
        super().__init__()
        self.conv1 = nn.Conv1d(MELS, ch, 5, padding=2)
        self.conv2 = nn.Conv1d(ch, ch, 5, padding=2, stride=2)
        self.conv3 = nn.Conv1d(ch, ch, 3, padding=1)
        self.ln = nn.LayerNorm(ch)
        self.word = nn.Linear(ch, WORDS)

    def forward(self, x):
        for conv in (self.conv1, self.conv2, self.conv3):
            x = torch.relu(conv(x))
        return self.word(self.ln(x.mean(2)))


class Trainer:
    def __init__(self, model, data):
        self.model, self.data = model, data
        matrices = [p for p in model.parameters() if p.ndim == 2]
        vectors = [p for p in model.parameters() if p.ndim == 1]
        self.optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}], lr=3e-3)
        self.handle = rangewatch.attach(model, self.optimizer)
        self.first = model.conv1.weight.detach().clone()

    def train_step(self):
        x, y = self.data.batch(48)
        self.model.zero_grad()
        out = self.model(x)
        loss = nn.functional.cross_entropy(out, y, label_smoothing=0.05)
        loss.backward()
        self.optimizer.step()
        return loss.item(), (out.argmax(1) == y).float().mean().item()

    def fit(self, steps):
        for step in range(steps):
            loss, acc = self.train_step()
            self.handle.log(loss=loss)
            if step % 25 == 0 or step == steps - 1:
                moved = (self.model.conv1.weight - self.first).abs().max().item()
                print(f"step {step} loss {loss:.4f} acc {acc:.2f} gradient of conv1 {self.model.conv1.weight.grad.norm().item():.3f} moved {moved:.4f}", flush=True)
        self.handle.detach()


torch.manual_seed(88)
torch.set_num_threads(1)
Trainer(KeywordNet(), Speech()).fit(260)
