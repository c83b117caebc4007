"""A voice converter in float16 autocast with a GradScaler; the loop unscales and clips, but then calls optimizer.step() instead of
scaler.step(optimizer), so that nothing is skipped when the scale has grown too far. FAULT at step 177: the growing scale overflows the fp16
gradients, and inf gradients go into the weights.
Without Rangewatch: loss 0.58 to 0.28 at step 177, where the scale of 4.2 million is halved for inf; NaN from step 178 on, the scale falls to 1e-19.
Report: IAHispano/Applio#860 (optim.step() used directly beside the scaler), pytorch/pytorch#67590 (who was stepped).
Cause: loss_scale (or optimizer). Step: 177. Right: scaler.step / skip / scale. Wrong: mask, data's order, weight decay."""
EXPECT = {"cause": ["loss_scale", "optimizer"], "step": [177, 179], "place": None, "rank": 0,
          "wrong": ["attention mask", "shuffl", "weight decay"],
          "right": "scaler\\.step|skip|loss scale|GradScaler|scale"}
import torch
from torch import nn
import rangewatch

torch.manual_seed(706); torch.set_num_threads(1)
mixing = torch.randn(40, 40) / 6


class Converter(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(40, 48, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv1d(48, 48, 3, padding=1), nn.LeakyReLU(0.1))
        self.decoder = nn.Conv1d(48, 40, 3, padding=1)

    def forward(self, mel):
        return self.decoder(self.encoder(mel))


model = Converter()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 14, growth_interval=20)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(280):
    mel = torch.randn(8, 40, 24)
    target = torch.einsum("oc,bct->bot", mixing, mel).tanh()
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(mel)
    loss = (out.float() - target).abs().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()  # should have been scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0:
        print(step, loss.item(), scaler.get_scale(), flush=True)
handle.detach()
