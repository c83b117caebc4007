"""A transformer of the first kind (the norm after each sum, six layers) that names a melody played with wrong notes. FAULT from step 0 on: Adam with a
rate of 2e-2 (a typing error: 2e-4 was meant) and no warm-up. Within a few steps the net gives the same answer for all, and the loss stays at chance.
Without Rangewatch: loss 2.25 to 2.03 at step 40, 2.05 to 2.16 from step 60 to the end (log of 8 is 2.08); with a rate of 2e-4 it falls to 0.12.
Report: LiyuanLucasLiu/Transformer-Clinic#16 (Post-LN without warm-up does not converge), openclimatefix-archives/predict_pv_yield#43 (try warm-up or
the norm inside), tensorflow/tensor2tensor#280.
Cause: learning_rate. Step: 0. Right: learning rate / warm-up / schedule. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 100], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "learning rate|warm-?up|schedule|step size"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1011); torch.set_num_threads(1)
NOTES, LENGTH, MELODIES = 12, 12, 8
melody = torch.randint(0, NOTES, (MELODIES, LENGTH))


class Namer(nn.Module):
    def __init__(self):
        super().__init__()
        self.note, self.place = nn.Embedding(NOTES, 48), nn.Parameter(0.5 * torch.randn(LENGTH, 48))
        layer = nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.out = nn.Linear(48, MELODIES)

    def forward(self, x):
        return self.out(self.body(self.note(x) + self.place).mean(1))


model = Namer()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    which = torch.randint(0, MELODIES, (32,))
    x = torch.where(torch.rand(32, LENGTH) < 0.3, torch.randint(0, NOTES, (32, LENGTH)), melody[which])
    loss = F.cross_entropy(model(x), which)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step < 5 or step == 239:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
