"""Rhythm of heartbeats (five kinds, 40 samples, two leads) by a two-layer LSTM, Adam.
FAULT at step 0: the data are (batch, time, lead) but the LSTM was built without batch_first=True: it runs along the batch, and out[:, -1] is what it knows of the last sample alone.
Without Rangewatch: loss 1.599 at first, 1.60 to 1.63 to the end, that is ln 5 (with batch_first=True 0.71 at 180, 0.61 at 219).
Cause: forward_arithmetic (axes mixed up) / data. Step: from 0. Right: batch_first=True or transpose. Wrong: GradScaler, attention mask, clip."""
EXPECT = {"cause": ["forward_arithmetic", "data"], "step": [0, 200], "place": None, "rank": None,
          "right": r"(?i)batch_first|transpos|permut|axis|axes|dimension|shape|layout|rows|mix", "wrong": ["GradScaler", r"(?i)attention mask", r"(?i)clip (the )?grad"]}
import torch
import torch.nn as nn
import rangewatch

torch.manual_seed(120)
torch.set_num_threads(1)
FREQ = torch.tensor([1.0, 1.6, 2.4, 3.4, 4.8])


def beats(n):
    kind = torch.randint(0, 5, (n,))
    t = torch.linspace(0, 1, 40)
    phase = 6.28 * torch.rand(n, 1)
    wave = torch.sin(6.28 * FREQ[kind][:, None] * t + phase)
    lead2 = torch.cos(6.28 * FREQ[kind][:, None] * t + phase)
    return torch.stack([wave, lead2], 2) + 0.15 * torch.randn(n, 40, 2), kind


class BeatLSTM(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.lstm = nn.LSTM(input_size=2, hidden_size=hidden, num_layers=2)
        self.fc = nn.Linear(hidden, 5)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.fc(out[:, -1, :])


model = BeatLSTM()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
criterion = nn.CrossEntropyLoss()
handle = rangewatch.attach(model, optimizer)
for i in range(220):
    x, y = beats(48)
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item())
    if i % 20 == 0 or i == 219:
        print(f"iteration {i} loss {loss.item():.4f}", flush=True)
handle.detach()
